//! Runs cases, says how long each took, and gives one verdict.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// A named case: it panics when what it tests does not hold.
pub(crate) type Case = (&'static str, fn());

/// A case of a room.
pub(crate) struct RoomCase {
    pub(crate) name: String,
    /// Runs without being asked for by name.
    pub(crate) always: bool,
    pub(crate) run: Box<dyn Fn() + Send + Sync>,
}

/// Cases that belong together.
pub(crate) struct Room {
    pub(crate) cases: Vec<RoomCase>,
    /// How many run at a time: packets wait more than they work.
    pub(crate) at_a_time: usize,
}

impl Room {
    /// Cases that run one after the other.
    pub(crate) fn of(cases: &[Case]) -> Self {
        let boxed = |(name, case): &Case| RoomCase {
            name: (*name).to_owned(),
            always: true,
            run: Box::new(*case),
        };
        Self {
            cases: cases.iter().map(boxed).collect(),
            at_a_time: 1,
        }
    }
}

/// Runs the cases whose names contain one of the filters. No case at all is a failure: something was misspelt.
///
/// A case that fails in company gets a second chance by itself: without KVM one processor is emulated for a whole network,
/// and a wait that is too short there says nothing about what is tested. What fails then has failed.
pub(crate) fn run(rooms: &[Room], filters: &[String]) -> ExitCode {
    let is_wanted = |case: &&RoomCase| match filters {
        [] => case.always,
        filters => filters.iter().any(|part| case.name.contains(part)),
    };
    let (passed, failed) = (Mutex::new(0), Mutex::new(Vec::<&RoomCase>::new()));
    for room in rooms {
        let queue = Mutex::new(room.cases.iter().filter(is_wanted));
        let work = || {
            while let Some(case) = { queue.lock().unwrap().next() } {
                if passes(case) {
                    *passed.lock().unwrap() += 1;
                } else {
                    failed.lock().unwrap().push(case);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..room.at_a_time {
                scope.spawn(work);
            }
        });
    }
    let (mut passed, mut failed) = (passed.into_inner().unwrap(), failed.into_inner().unwrap());
    let in_company = failed.len();
    failed.retain(|case| !passes(case));
    passed += in_company - failed.len();
    let failed: Vec<&String> = failed.into_iter().map(|case| &case.name).collect();
    println!("{passed} passed, {} failed {failed:?}", failed.len());
    ExitCode::from(u8::from(passed == 0 || !failed.is_empty()))
}

/// Runs a case on a thread of its own, which may change to another network namespace and goes with it.
fn passes(case: &RoomCase) -> bool {
    let begun = Instant::now();
    let passed = std::thread::scope(|scope| scope.spawn(&case.run).join()).is_ok();
    let (verdict, seconds) = (
        if passed { "ok  " } else { "FAIL" },
        begun.elapsed().as_secs_f32(),
    );
    println!("{verdict} {} ({seconds:.1} s)", case.name);
    passed
}
