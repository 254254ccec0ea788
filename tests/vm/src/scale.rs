//! Many services: one change costs what it touches, not what there is.

use std::time::{Duration, Instant};

use ferry_backends::ipvs::{Ipvs, Options};
use ferry_lab::netns::Namespace;
use ferry_model::{Planner, Protocol, Service};

use crate::backend::{apply, open, options, silent};
use crate::cases::Case;
use crate::facts::{endpoints, planner, put, service};

pub(crate) const CASES: &[Case] = &[("scale::one_change_among_5000_services", flat)];

const FEW: usize = 250;
const MANY: usize = 5000;
const CHANGES: usize = 41;

fn nth(n: usize) -> Service {
    service(
        &format!("svc-{n}"),
        &format!("10.{}.{}.{}", 100 + n / 62500, n / 250 % 250, 1 + n % 250),
        Protocol::Tcp,
    )
}

fn add(planner: &mut Planner, range: std::ops::Range<usize>) {
    for n in range {
        let service = nth(n);
        planner.update([
            put(&service),
            endpoints(&service, &["10.244.1.2", "10.244.2.2", "10.244.2.3"]),
        ]);
    }
}

/// The quickest and the median of some changes of an endpoint.
fn change_time(planner: &mut Planner, backend: &mut Ipvs, services: usize) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..CHANGES)
        .map(|round| {
            let service = nth(round * services / CHANGES);
            let last = format!("10.244.{}.{}", 3 + services / 100, 1 + round);
            planner.update([endpoints(&service, &["10.244.1.2", "10.244.2.2", &last])]);
            let begun = Instant::now();
            let applied = apply(backend, planner);
            assert!(
                !applied.full && applied.added == 1 && applied.removed == 1,
                "{applied:?}"
            );
            begun.elapsed()
        })
        .collect();
    times.sort();
    (times[0], times[CHANGES / 2])
}

fn flat() {
    Namespace::new("scale").unwrap().run(measure).unwrap();
}

fn measure() {
    let (mut planner, mut backend) = (planner(), open());
    add(&mut planner, 0..FEW);
    apply(&mut backend, &planner);
    let few = change_time(&mut planner, &mut backend, FEW);
    add(&mut planner, FEW..MANY);
    let begun = Instant::now();
    apply(&mut backend, &planner);
    let load = begun.elapsed();
    let many = change_time(&mut planner, &mut backend, MANY);
    println!("     {FEW} services: a change takes {few:?} (quickest, median)");
    println!("     {MANY} services: {many:?}; loading the rest took {load:?}");
    // An emulated machine on a busy host is noisy, so the quickest counts: were the cost that of all services, it would
    // be twenty times as high.
    let limit = few.0 * 4 + Duration::from_millis(2);
    assert!(
        many.0 < limit,
        "{few:?} with {FEW} services, {many:?} with {MANY}"
    );
    let often = Options {
        repair_every: Some(Duration::ZERO),
        ..options()
    };
    let mut second = Ipvs::open(often, silent()).unwrap();
    for why in ["as a new process", "because it is time"] {
        let begun = Instant::now();
        let compared = apply(&mut second, &planner);
        println!("     everything is compared, {why}, in {:?}", begun.elapsed());
        assert_eq!((compared.full, compared.added, compared.removed), (true, 0, 0));
    }
}
