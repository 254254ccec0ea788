//! Runs cases, says how long each took, and gives one verdict.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// A named case: it panics when what it tests does not hold.
pub(crate) type Case = (&'static str, fn());

/// The guests among which a run of the whole tier divides its cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guest {
    /// Debian's kernel in an emulated machine: has everything, nf_tables and SCTP included.
    Stock,
    /// Debian's user-mode kernel: much quicker, with the older kind of iptables.
    UserMode,
}

impl Guest {
    pub(crate) const BOTH: &[Guest] = &[Guest::Stock, Guest::UserMode];

    fn named(name: &str) -> Option<Guest> {
        match name {
            "stock" => Some(Guest::Stock),
            "user-mode" => Some(Guest::UserMode),
            _ => None,
        }
    }
}

/// Which cases to run.
pub(crate) enum Wanted {
    /// A guest's share of the tier.
    Share(Guest),
    /// Those whose names contain one of these; all if there are none.
    Named(Vec<String>),
}

impl Wanted {
    /// From the command line: `--share GUEST`, or parts of names.
    pub(crate) fn parse(args: Vec<String>) -> Option<Wanted> {
        match args.as_slice() {
            [flag, guest] if flag == "--share" => Guest::named(guest).map(Wanted::Share),
            _ => Some(Wanted::Named(args)),
        }
    }

    fn includes(&self, case: &RoomCase) -> bool {
        match self {
            Wanted::Share(guest) => case.guests.contains(guest),
            Wanted::Named(parts) => parts.is_empty() || parts.iter().any(|part| case.name.contains(part)),
        }
    }
}

/// A case of a room.
pub(crate) struct RoomCase {
    pub(crate) name: String,
    /// Where it runs when nobody asked for it by name.
    pub(crate) guests: &'static [Guest],
    pub(crate) run: Box<dyn Fn() + Send + Sync>,
}

/// Cases that run one after the other, or some at a time: they wait more than they work.
pub(crate) struct Room {
    pub(crate) cases: Vec<RoomCase>,
    pub(crate) at_a_time: usize,
}

pub(crate) fn of(cases: &[Case], guests: &'static [Guest]) -> Vec<RoomCase> {
    let boxed = |(name, case): &Case| RoomCase {
        name: (*name).to_owned(),
        guests,
        run: Box::new(*case),
    };
    cases.iter().map(boxed).collect()
}

/// Runs the cases. No case at all is a failure: something was misspelt.
pub(crate) fn run(rooms: &[Room], wanted: &Wanted) -> ExitCode {
    let (passed, failed) = (Mutex::new(0), Mutex::new(Vec::<&str>::new()));
    for room in rooms {
        let queue = Mutex::new(room.cases.iter().filter(|case| wanted.includes(case)));
        let work = || {
            while let Some(case) = { queue.lock().unwrap().next() } {
                if passes(case) {
                    *passed.lock().unwrap() += 1;
                } else {
                    failed.lock().unwrap().push(&case.name);
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
