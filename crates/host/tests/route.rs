//! Links and addresses on the real kernel, in a network namespace that each test makes for its own thread.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferry_host::route::{Change, Error, Monitor, Neighbour, Route};

fn in_namespace(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a network namespace is the only thing this thread stops sharing.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
            body();
        });
    });
}

fn loopback(route: &mut Route) -> u32 {
    let link = route.link("lo").unwrap().unwrap();
    assert!(link.loopback && !link.up && link.kind.is_none());
    link.index
}

#[test]
fn addresses_come_and_go_once() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        let lo = loopback(&mut route);
        for text in ["10.96.0.1", "fd00::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert!(route.add_address(lo, address).unwrap(), "{address} is new");
            assert!(
                !route.add_address(lo, address).unwrap(),
                "{address} is there already"
            );
            let held: Vec<_> = route
                .addresses()
                .unwrap()
                .into_iter()
                .filter(|a| a.address == address)
                .collect();
            assert_eq!(held.len(), 1);
            assert_eq!(held[0].interface, "lo");
            assert_eq!(held[0].prefix, if address.is_ipv4() { 32 } else { 128 });
            assert!(route.remove_address(lo, address).unwrap());
            assert!(
                !route.remove_address(lo, address).unwrap(),
                "{address} is gone already"
            );
        }
        assert!(route.addresses().unwrap().is_empty());
    });
}

#[test]
fn an_interface_of_another_kind_is_left_alone() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        assert!(matches!(route.remove_dummy("lo"), Err(Error::OtherKind { .. })));
        assert!(!route.remove_dummy("nothing").unwrap());
        assert!(route.link("lo").unwrap().is_some());
    });
}

#[test]
fn the_monitor_reports_what_changed_after_it_was_opened() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        let index = loopback(&mut route);
        route.add_address(index, "10.0.0.1".parse().unwrap()).unwrap();
        let mut monitor = Monitor::open().unwrap();
        assert_eq!(monitor.wait(Duration::ZERO).unwrap(), []);
        let (four, six): (IpAddr, IpAddr) = ("10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
        route.add_address(index, four).unwrap();
        route.add_address(index, six).unwrap();
        route.remove_address(index, four).unwrap();
        let want = [
            Change::Added { index, address: four },
            Change::Added { index, address: six },
            Change::Removed { index, address: four },
        ];
        let (mut seen, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(30));
        while seen.len() < want.len() && Instant::now() < deadline {
            seen.extend(monitor.wait(Duration::from_secs(1)).unwrap());
        }
        for change in want {
            assert!(seen.contains(&change), "{change:?} in {seen:?}");
        }
    });
}

#[test]
fn marked_addresses_are_told_from_others() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        let lo = loopback(&mut route);
        let ours: [IpAddr; 2] = ["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        for address in ours {
            assert!(route.add_marked_address(lo, address, 200).unwrap());
            assert!(!route.add_marked_address(lo, address, 200).unwrap());
        }
        route.add_address(lo, "10.96.0.2".parse().unwrap()).unwrap();
        assert_eq!(route.marked_addresses(lo, 200).unwrap(), ours);
        assert_eq!(route.marked_addresses(lo, 201).unwrap(), [] as [IpAddr; 0]);
        assert!(route.remove_address(lo, ours[0]).unwrap());
        assert_eq!(route.marked_addresses(lo, 200).unwrap(), ours[1..]);
    });
}

#[test]
fn the_way_to_an_address_is_the_kernels() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        let nowhere = route.way("203.0.113.1".parse().unwrap()).unwrap().unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::ENETUNREACH));
        let lo = loopback(&mut route);
        let own: IpAddr = "10.96.0.1".parse().unwrap();
        route.add_address(lo, own).unwrap();
        let way = route.way(own).unwrap().unwrap();
        assert!(way.local && way.gateway.is_none(), "{way:?}");
        assert_eq!(way.interface, lo);
        assert_eq!(route.neighbour(lo, own).unwrap(), Neighbour::Unknown);
    });
}
