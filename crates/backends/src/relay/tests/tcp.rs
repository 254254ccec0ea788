//! TCP: bytes, endpoints that do not answer, limits, changes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferry_model::{Allowed, Protocol};

use super::*;

#[test]
fn tcp_echo() {
    let bench = Bench::tcp(&[tcp_endpoint(echo)]);
    let mut stream = bench.connect();
    for message in ["hello", "again"] {
        stream.write_all(message.as_bytes()).unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, message.as_bytes());
    }
    drop(stream);
    until("the connection is over", || bench.totals().active == 0);
    let totals = bench.totals();
    assert_eq!(
        (totals.connections, totals.bytes_received, totals.bytes_sent),
        (1, 10, 10)
    );
    until("the permit is back", || bench.relay.connections() == 0);
}

#[test]
fn a_client_that_has_said_all_still_gets_its_answer() {
    let endpoint = tcp_endpoint(|mut stream| {
        let mut question = Vec::new();
        stream.read_to_end(&mut question).unwrap();
        stream
            .write_all(format!("got {}", question.len()).as_bytes())
            .unwrap();
    });
    let bench = Bench::tcp(&[endpoint]);
    let mut stream = bench.connect();
    stream.write_all(&[7; 1000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(stream).unwrap(), "got 1000");
}

#[test]
fn an_endpoint_that_has_said_all_still_hears_its_client() {
    let (heard, hears) = std::sync::mpsc::channel();
    let endpoint = tcp_endpoint(move |mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        heard.send(read_all(stream).unwrap()).unwrap();
    });
    let bench = Bench::tcp(&[endpoint]);
    let mut stream = bench.connect();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "bye");
    stream.write_all(b"one more thing").unwrap();
    drop(stream);
    assert_eq!(hears.recv_timeout(TIMEOUT).unwrap(), "one more thing");
}

/// Sends a lot both ways at once, so that copying, splicing and waiting for the slower side all happen.
#[test]
fn large_transfers_arrive_whole() {
    const SIZE: usize = 24 << 20;
    let endpoint = tcp_endpoint(|stream| {
        let mut sending = stream.try_clone().unwrap();
        let sender = thread::spawn(move || {
            sending.write_all(&noise(SIZE, 2)).unwrap();
            sending.shutdown(Shutdown::Write).unwrap();
        });
        let mut reading = stream;
        let mut got = Vec::new();
        reading.read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got == noise(SIZE, 1), "the endpoint got something else");
    });
    let bench = Bench::tcp(&[endpoint]);
    let stream = bench.connect();
    let mut sending = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        for chunk in noise(SIZE, 1).chunks(123_457) {
            sending.write_all(chunk).unwrap();
        }
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut reading = stream;
    let mut got = Vec::new();
    reading.read_to_end(&mut got).unwrap();
    sender.join().unwrap();
    assert!(got == noise(SIZE, 2), "the client got something else");
    until("the connection is over", || bench.totals().active == 0);
    let totals = bench.totals();
    assert_eq!(
        (totals.bytes_received, totals.bytes_sent),
        (SIZE as u64, SIZE as u64)
    );
    let pipes = &bench.relay.shared.pipes;
    assert!(pipes.open() > 0, "nothing was spliced");
    assert_eq!(pipes.open(), pipes.idle(), "a pipe was kept or lost");
}

#[test]
fn a_reader_that_stops_holds_its_writer_back_and_nobody_else() {
    let endpoint = tcp_endpoint(|mut stream| {
        let block = vec![1; 1 << 16];
        while stream.write_all(&block).is_ok() {}
    });
    let bench = Bench::tcp(&[endpoint]);
    let lazy = bench.connect();
    let steady = || {
        let before = bench.totals().bytes_sent;
        thread::sleep(Duration::from_millis(200));
        before > 0 && bench.totals().bytes_sent == before
    };
    until("the writer is held back", steady);
    assert!(
        bench.totals().bytes_sent < 64 << 20,
        "no more than the sockets' buffers"
    );
    let mut eager = bench.connect();
    let mut read = vec![0; 1 << 16];
    for _ in 0..64 {
        eager.read_exact(&mut read).unwrap();
    }
    drop((lazy, eager));
    until("the connections are over", || bench.totals().active == 0);
}

#[test]
fn endpoints_take_turns_and_refusing_ones_are_passed_over() {
    let bench = Bench::tcp(&[named("a"), refusing(), named("b")]);
    let mut counts = [0; 2];
    for _ in 0..10 {
        match read_all(bench.connect()).unwrap().as_str() {
            "a" => counts[0] += 1,
            "b" => counts[1] += 1,
            other => panic!("{other}"),
        }
    }
    assert!(counts.iter().all(|count| *count >= 4), "{counts:?}");
    assert_eq!(bench.totals().failed, 0);
}

#[test]
fn a_silent_endpoint_costs_its_own_clients_the_first_timeout_only() {
    let silent = Silent::new();
    let bench = Bench::tcp(&[silent.address]);
    // Clients of the silent endpoint are waiting while another one becomes available.
    let waiting: Vec<_> = (0..20).map(|_| bench.connect()).collect();
    bench.set(&[silent.address, named("alive")], None);
    let start = Instant::now();
    assert_eq!(read_all(bench.connect()).unwrap(), "alive");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for stream in waiting {
        assert_eq!(read_all(stream).unwrap(), "alive");
    }
}

#[test]
fn where_nobody_answers_the_client_is_told() {
    let quick = Settings {
        dial: vec![Duration::from_millis(50); 4],
        ..settings()
    };
    let silent = Silent::new();
    let bench = Bench::new(
        quick,
        listen(Protocol::Tcp, any()).unwrap(),
        &[silent.address, refusing()],
        None,
    );
    let error = read_all(bench.connect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    bench.set(&[], None);
    assert_eq!(
        read_all(bench.connect()).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!((bench.totals().failed, bench.totals().connections), (2, 0));
}

/// Four attempts by the classic times, of 250 ms, 500 ms, 1 s and 2 s.
#[test]
fn a_lone_silent_endpoint_is_tried_four_times() {
    let silent = Silent::new();
    let bench = Bench::tcp(&[silent.address]);
    let start = Instant::now();
    let error = read_all(bench.connect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(
        start.elapsed() >= Duration::from_millis(3750),
        "given up after {:?}",
        start.elapsed()
    );
}

#[test]
fn a_reset_is_passed_on() {
    let endpoint = tcp_endpoint(|mut stream| {
        stream.read_exact(&mut [0; 1]).unwrap();
        reset_on_close(&stream);
    });
    let bench = Bench::tcp(&[endpoint]);
    let mut stream = bench.connect();
    stream.write_all(b"x").unwrap();
    assert_eq!(read_all(stream).unwrap_err().kind(), ErrorKind::ConnectionReset);
    until("the connection is over", || bench.totals().active == 0);
}

#[test]
fn a_client_sticks_to_its_endpoint() {
    let endpoints = [named("a"), named("b"), named("c")];
    let stay = Some(Duration::from_secs(3600));
    let bench = Bench::new(
        settings(),
        listen(Protocol::Tcp, any()).unwrap(),
        &endpoints,
        stay,
    );
    let first = read_all(bench.connect()).unwrap();
    for _ in 0..10 {
        assert_eq!(read_all(bench.connect()).unwrap(), first);
    }
    // Its endpoint leaves: the client moves on and stays there.
    let rest: Vec<_> = endpoints
        .iter()
        .zip(["a", "b", "c"])
        .filter(|(_, name)| *name != first)
        .collect();
    let addresses: Vec<_> = rest.iter().map(|(address, _)| **address).collect();
    bench.port.balancer.update(&pools(&addresses), stay);
    let second = read_all(bench.connect()).unwrap();
    assert_ne!(second, first);
    for _ in 0..10 {
        assert_eq!(read_all(bench.connect()).unwrap(), second);
    }
}

#[test]
fn policy_decides_by_client() {
    let bench = Bench::tcp(&[named("in")]);
    let only = |net: &str| Access {
        allowed: Some(Arc::new(Allowed {
            ranges: vec![net.parse().unwrap()],
            own_addresses: Vec::new(),
        })),
        ..Access::open(TO_ALL)
    };
    bench.door.set_access(only("192.0.2.0/24"));
    assert_eq!(
        read_all(bench.connect()).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    bench.door.set_access(only("127.0.0.0/8"));
    assert_eq!(read_all(bench.connect()).unwrap(), "in");
    assert_eq!((bench.totals().refused, bench.totals().connections), (1, 1));
}

#[test]
fn at_the_limit_clients_wait() {
    let limited = Settings {
        max_connections: 2,
        ..settings()
    };
    let bench = Bench::new(
        limited,
        listen(Protocol::Tcp, any()).unwrap(),
        &[tcp_endpoint(echo)],
        None,
    );
    let mut streams: Vec<_> = (0..4).map(|_| bench.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
    }
    for stream in &mut streams[..2] {
        stream.read_exact(&mut [0; 1]).unwrap();
    }
    streams[2]
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    assert!(streams[2].read_exact(&mut [0; 1]).is_err(), "a third one got in");
    streams[2].set_read_timeout(Some(TIMEOUT)).unwrap();
    for mut stream in streams.drain(..) {
        stream.write_all(b"y").unwrap();
        let mut answer = [0; 1];
        while stream.read_exact(&mut answer).is_ok() && answer != *b"y" {}
        assert_eq!(answer, *b"y");
    }
}

#[test]
fn a_removed_endpoint_keeps_what_it_has_until_the_deadline() {
    let (old, new) = (tcp_endpoint(echo), named("new"));
    let bench = Bench::tcp(&[old]);
    let mut stream = bench.connect();
    let mut ask = move || {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0; 1])
    };
    ask().unwrap();
    bench.set(&[new], None);
    assert_eq!(read_all(bench.connect()).unwrap(), "new");
    ask().unwrap();
    // It comes back and leaves again: the deadline counts from then on.
    bench.set(&[new], Some(Duration::ZERO));
    bench.set(&[old, new], None);
    ask().unwrap();
    bench.set(&[new], Some(Duration::from_millis(100)));
    until("the deadline cuts the connection", || ask().is_err());
    until("the connection is over", || bench.totals().active == 0);
}

#[test]
fn closing_a_door_leaves_those_inside_alone() {
    let mut bench = Bench::tcp(&[tcp_endpoint(echo)]);
    let mut stream = bench.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    bench.serving = None;
    until("the door is closed", || {
        TcpStream::connect(bench.at).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    stream.write_all(b"y").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    listen(Protocol::Tcp, bench.at).unwrap();
}

#[test]
fn endpoints_learn_who_is_connecting() {
    let endpoint = tcp_endpoint(|mut stream| {
        let mut header = [0; 28];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(&header).unwrap();
    });
    let bench = Bench::tcp(&[endpoint]);
    bench.port.set_options(PortOptions {
        proxy_protocol: true,
        drain: None,
    });
    let mut stream = bench.connect();
    let client = stream.local_addr().unwrap();
    let mut header = [0; 28];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header.to_vec(), proxy_protocol::header(client, bench.at));
}

/// Many clients against endpoints that come, go, answer, refuse and reset: nothing is lost, mixed up or leaked.
#[test]
fn a_crowd_with_changing_endpoints() {
    let endpoints: Vec<SocketAddr> = (0..4).map(|_| tcp_endpoint(echo)).collect();
    let bench = Bench::tcp(&endpoints);
    let (going, served) = (AtomicBool::new(true), AtomicUsize::new(0));
    thread::scope(|scope| {
        for seed in 0..8u64 {
            let (bench, going, served) = (&bench, &going, &served);
            scope.spawn(move || {
                let mut round = 0;
                while going.load(Ordering::Relaxed) {
                    round += 1;
                    let message = noise(1 + (round * 7919 % 200_000) as usize, seed * 1_000_000 + round);
                    let mut stream = bench.connect();
                    let mut sending = stream.try_clone().unwrap();
                    let copy = message.clone();
                    let sender = thread::spawn(move || {
                        sending.write_all(&copy).unwrap();
                        sending.shutdown(Shutdown::Write).unwrap();
                    });
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    sender.join().unwrap();
                    assert!(got == message, "client {seed}, round {round}");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut change = 0;
        while served.load(Ordering::Relaxed) < 400 {
            change += 1;
            let some: Vec<_> = (0..4)
                .filter(|n| (change >> n) & 1 == 1 || *n == change % 4)
                .collect();
            let mut set: Vec<_> = some.iter().map(|n| endpoints[*n]).collect();
            if change % 3 == 0 {
                set.push(refusing());
            }
            bench.set(&set, None);
            thread::sleep(Duration::from_millis(1));
        }
        going.store(false, Ordering::Relaxed);
    });
    until("all connections are over", || {
        bench.totals().active == 0 && bench.relay.connections() == 0
    });
    let totals = bench.totals();
    assert_eq!(
        (totals.connections, totals.failed),
        (served.load(Ordering::Relaxed) as u64, 0)
    );
    assert_eq!(totals.bytes_received, totals.bytes_sent);
}
