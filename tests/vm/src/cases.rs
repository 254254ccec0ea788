//! Runs cases, says how long each took, and gives one verdict.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// A named case: it panics when what it tests does not hold.
pub(crate) type Case = (&'static str, fn());

/// Cases that belong together.
pub(crate) struct Room {
    pub(crate) cases: Vec<(String, Box<dyn Fn() + Send + Sync>)>,
    /// How many run at a time: packets wait more than they work.
    pub(crate) at_a_time: usize,
}

impl Room {
    /// Cases that run one after the other.
    pub(crate) fn of(cases: &[Case]) -> Self {
        let boxed = |(name, case): &Case| -> (String, Box<dyn Fn() + Send + Sync>) {
            ((*name).to_owned(), Box::new(*case))
        };
        Self {
            cases: cases.iter().map(boxed).collect(),
            at_a_time: 1,
        }
    }
}

/// Runs the cases whose names contain one of the filters. No case at all is a failure: something was misspelt.
pub(crate) fn run(rooms: &[Room], filters: &[String]) -> ExitCode {
    let is_wanted = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(part));
    let (passed, failed) = (Mutex::new(0), Mutex::new(Vec::new()));
    for room in rooms {
        let queue = Mutex::new(room.cases.iter().filter(|(name, _)| is_wanted(name)));
        let work = || {
            while let Some((name, case)) = { queue.lock().unwrap().next() } {
                if took(name, case) {
                    *passed.lock().unwrap() += 1;
                } else {
                    failed.lock().unwrap().push(name.clone());
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..room.at_a_time {
                scope.spawn(work);
            }
        });
    }
    let (passed, failed) = (passed.into_inner().unwrap(), failed.into_inner().unwrap());
    println!("{passed} passed, {} failed {failed:?}", failed.len());
    ExitCode::from(u8::from(passed == 0 || !failed.is_empty()))
}

/// Runs a case on a thread of its own, which may change to another network namespace and goes with it.
fn took(name: &str, case: &(dyn Fn() + Send + Sync)) -> bool {
    let begun = Instant::now();
    let ended = std::thread::scope(|scope| scope.spawn(case).join());
    let (verdict, seconds) = (
        if ended.is_ok() { "ok  " } else { "FAIL" },
        begun.elapsed().as_secs_f32(),
    );
    println!("{verdict} {name} ({seconds:.1} s)");
    ended.is_ok()
}
