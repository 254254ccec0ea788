//! The log of a source that fails: a line when it begins, one when it ends, none per attempt.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferry_lab::api::{Api as Server, Faults, default_objects};
use ferry_lab::wait_until;
use ferry_sources::kube::{Connection, KubeSource, Timing};
use ferry_sources::{Kind, Mailbox};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    fn lines(&self, with: &str) -> usize {
        self.text().lines().filter(|line| line.contains(with)).count()
    }
}

#[test]
fn an_outage_is_logged_once_however_long_it_lasts() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();

    let server = Server::start().unwrap();
    server.apply(default_objects()).unwrap();
    server.pause();
    let connection = Connection {
        master: Some(server.url()),
        qps: -1.0,
        ..Connection::default()
    };
    let timing = Timing {
        backoff_first: Duration::from_millis(5),
        backoff_most: Duration::from_millis(20),
        settle: Duration::from_millis(50),
        ..Timing::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let api = connection.connect().unwrap();
    let requests = api.requests().clone();
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    runtime.spawn(
        KubeSource::new(api, "node-a")
            .with_timing(timing)
            .run(mailbox.clone()),
    );

    let failed = |code: &str| {
        requests
            .counts()
            .iter()
            .filter(|r| r.code == code)
            .map(|r| r.count)
            .sum::<u64>()
    };
    let limit = Duration::from_secs(60);
    assert!(wait_until(limit, || failed("<error>") >= 40));
    assert_eq!(
        log.lines("API server is not available"),
        1,
        "one for all resources"
    );
    assert_eq!(log.lines("cannot reach"), 1);
    assert_eq!(log.lines("since=\"20"), 1, "{}", log.text());

    server.set_faults(Faults {
        code: Some(503),
        ..Faults::default()
    });
    server.resume().unwrap();
    assert!(wait_until(limit, || failed("503") >= 40));
    assert_eq!(log.lines("answered 503"), 1, "another sort of failure is news");
    assert_eq!(log.lines("API server is not available"), 2);

    server.set_faults(Faults::default());
    assert!(wait_until(limit, || mailbox.is_open() && mailbox.problems().is_empty()));
    assert!(wait_until(limit, || log.lines("API server is available again") == 1));
    assert_eq!(log.lines("seconds="), 1);
    assert_eq!(log.lines("cannot follow"), 0);
    assert_eq!(log.text().lines().count(), 3, "{}", log.text());
}
