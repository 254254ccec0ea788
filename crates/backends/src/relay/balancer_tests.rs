use std::collections::BTreeMap;

use super::*;

fn endpoint(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 80))
}

fn client(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

fn pools(numbers: &[u8]) -> Pools {
    let all: Vec<SocketAddr> = numbers.iter().map(|n| endpoint(*n)).collect();
    Pools {
        cluster: all.clone(),
        local: Vec::new(),
        known: all,
    }
}

fn pick(balancer: &Balancer, who: u8, at: Instant) -> Option<SocketAddr> {
    balancer
        .pick(Scope::Cluster, client(who), &[], at)
        .map(|target| target.address)
}

const STICKY: Option<Duration> = Some(Duration::from_secs(100));

#[test]
fn nothing_to_pick_without_endpoints() {
    let balancer = Balancer::default();
    assert_eq!(pick(&balancer, 1, Instant::now()), None);
    balancer.update(&pools(&[1]), None);
    assert_eq!(pick(&balancer, 1, Instant::now()), Some(endpoint(1)));
    balancer.update(&pools(&[]), None);
    assert_eq!(pick(&balancer, 1, Instant::now()), None);
}

#[test]
fn endpoints_take_turns() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2, 3]), None);
    let now = Instant::now();
    let first: Vec<_> = (0..3).filter_map(|_| pick(&balancer, 1, now)).collect();
    let second: Vec<_> = (0..3).filter_map(|_| pick(&balancer, 1, now)).collect();
    assert_eq!(first, second);
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 3);
}

#[test]
fn an_unchanged_set_keeps_its_turn() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2, 3]), None);
    let now = Instant::now();
    let order: Vec<_> = (0..3).filter_map(|_| pick(&balancer, 1, now)).collect();
    assert_eq!(pick(&balancer, 1, now), Some(order[0]));
    balancer.update(&pools(&[3, 2, 1]), None);
    assert_eq!(pick(&balancer, 1, now), Some(order[1]));
}

#[test]
fn each_reach_has_its_own_ring() {
    let balancer = Balancer::default();
    balancer.update(
        &Pools {
            local: vec![endpoint(9)],
            ..pools(&[1, 2])
        },
        None,
    );
    let now = Instant::now();
    for _ in 0..4 {
        assert_eq!(
            balancer.pick(Scope::Local, client(1), &[], now).unwrap().address,
            endpoint(9)
        );
        assert_ne!(pick(&balancer, 1, now), Some(endpoint(9)));
    }
}

#[test]
fn a_sticky_client_stays_until_its_time_is_over() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2, 3]), STICKY);
    let start = Instant::now();
    let first = pick(&balancer, 1, start);
    let second = pick(&balancer, 2, start);
    assert_ne!(first, second);
    // Every use renews the record.
    for seconds in [99, 198, 297] {
        assert_eq!(pick(&balancer, 1, start + Duration::from_secs(seconds)), first);
    }
    // The second client was away for too long: it is the third endpoint's turn.
    let third = pick(&balancer, 2, start + Duration::from_secs(297));
    assert!(third != second && third != first);
}

#[test]
fn a_changed_timeout_holds_for_existing_records() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2, 3]), STICKY);
    let start = Instant::now();
    let first = pick(&balancer, 1, start);
    balancer.update(&pools(&[1, 2, 3]), Some(Duration::from_secs(5)));
    assert_eq!(pick(&balancer, 1, start + Duration::from_secs(4)), first);
    assert_ne!(pick(&balancer, 1, start + Duration::from_secs(9)), first);
    balancer.update(&pools(&[1, 2, 3]), None);
    let turns: Vec<_> = (0..3).filter_map(|_| pick(&balancer, 1, start)).collect();
    assert_eq!(turns.iter().collect::<HashSet<_>>().len(), 3);
    assert!(balancer.sticky().is_empty());
}

#[test]
fn losing_one_endpoint_moves_only_its_clients() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2, 3]), STICKY);
    let now = Instant::now();
    let before: BTreeMap<u8, _> = (1..=30).map(|n| (n, pick(&balancer, n, now).unwrap())).collect();
    balancer.update(&pools(&[1, 3]), STICKY);
    for (who, had) in before {
        let has = pick(&balancer, who, now).unwrap();
        if had == endpoint(2) {
            assert_ne!(has, endpoint(2))
        } else {
            assert_eq!(has, had)
        }
    }
    balancer.update(&pools(&[7]), STICKY);
    assert!((1..=30).all(|n| pick(&balancer, n, now) == Some(endpoint(7))));
}

#[test]
fn a_failed_attempt_moves_on_and_the_client_sticks_to_what_answered() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2, 3]), STICKY);
    let now = Instant::now();
    let first = pick(&balancer, 1, now).unwrap();
    let second = balancer
        .pick(Scope::Cluster, client(1), &[first], now)
        .unwrap()
        .address;
    assert_ne!(first, second);
    let third = balancer
        .pick(Scope::Cluster, client(1), &[first, second], now)
        .unwrap()
        .address;
    assert!(third != first && third != second);
    assert_eq!(pick(&balancer, 1, now), Some(third));
    // All tried: the round goes on rather than give up early.
    assert!(
        balancer
            .pick(Scope::Cluster, client(1), &[first, second, third], now)
            .is_some()
    );
}

#[test]
fn an_endpoint_that_does_not_answer_is_asked_last_for_a_while() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1, 2]), None);
    let now = Instant::now();
    let bad = balancer.pick(Scope::Cluster, client(1), &[], now).unwrap();
    bad.failed(now);
    for _ in 0..4 {
        assert_ne!(pick(&balancer, 1, now), Some(bad.address));
    }
    let later = now + LONGEST_SUSPICION;
    let turns: HashSet<_> = (0..2).filter_map(|_| pick(&balancer, 1, later)).collect();
    assert_eq!(turns.len(), 2);
    bad.failed(later);
    bad.answered();
    let turns: HashSet<_> = (0..2).filter_map(|_| pick(&balancer, 1, later)).collect();
    assert_eq!(turns.len(), 2);
}

#[test]
fn a_departed_endpoint_keeps_its_connections_and_may_return() {
    let balancer = Balancer::default();
    balancer.update(&pools(&[1]), None);
    let target = balancer
        .pick(Scope::Cluster, client(1), &[], Instant::now())
        .unwrap();
    let lease = Lease::new(target.clone());
    let left = balancer.update(&pools(&[2]), None);
    assert!(left.len() == 1 && Arc::ptr_eq(&left[0], &target) && target.is_gone());
    assert!(balancer.update(&pools(&[2]), None).is_empty(), "it leaves once");
    let departure = target.departure().unwrap();
    balancer.update(&pools(&[1, 2]), None);
    assert!(!target.is_gone());
    target.cut_since(departure);
    assert!(
        !target.cut.load(Relaxed),
        "the deadline of a departure does not outlive the return"
    );
    drop(lease);
    assert_eq!(target.open_connections(), 0);
}

#[test]
fn affinity_survives_a_hand_over() {
    let (old, new) = (Balancer::default(), Balancer::default());
    old.update(&pools(&[1, 2, 3, 4]), STICKY);
    let now = Instant::now();
    let before: Vec<_> = (1..=40).map(|n| pick(&old, n, now)).collect();
    new.update(&pools(&[1, 2, 3, 4]), STICKY);
    new.restore_sticky(&old.sticky());
    assert_eq!((1..=40).map(|n| pick(&new, n, now)).collect::<Vec<_>>(), before);
}
