//! Runs cases, says how long each took, and gives one verdict.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// A named case: it panics when what it tests does not hold.
pub(crate) type Case = (&'static str, fn());

/// The parts of a run of the whole tier, by what they ask of their kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// A kernel that has everything, nf_tables and SCTP included.
    NfTables,
    /// The older kind of iptables, which any kernel with IPVS has.
    Legacy,
}

impl Share {
    pub(crate) const BOTH: &[Share] = &[Share::NfTables, Share::Legacy];

    fn named(name: &str) -> Option<Share> {
        match name {
            "nf-tables" => Some(Share::NfTables),
            "legacy" => Some(Share::Legacy),
            _ => None,
        }
    }
}

/// Which cases to run.
pub(crate) enum Wanted {
    /// A share of the tier.
    Share(Share),
    /// What of a share nobody else has marked as taken in that directory, which several guests see.
    Unclaimed(Share, PathBuf),
    /// Those whose names contain one of these; all if there are none.
    Named(Vec<String>),
}

impl Wanted {
    /// From the command line: `--share SHARE [--claims DIRECTORY]`, or parts of names.
    pub(crate) fn parse(args: Vec<String>) -> Option<Wanted> {
        match args.as_slice() {
            [flag, share] if flag == "--share" => Share::named(share).map(Wanted::Share),
            [flag, share, claims, dir] if flag == "--share" && claims == "--claims" => {
                Some(Wanted::Unclaimed(Share::named(share)?, dir.into()))
            }
            _ => Some(Wanted::Named(args)),
        }
    }

    fn includes(&self, case: &RoomCase) -> bool {
        match self {
            Wanted::Share(share) | Wanted::Unclaimed(share, _) => case.shares.contains(share),
            Wanted::Named(parts) => parts.is_empty() || parts.iter().any(|part| case.name.contains(part)),
        }
    }

    /// Whether the case is ours to run: of several guests that ask, one is told yes.
    fn claim(&self, case: &RoomCase) -> bool {
        let Wanted::Unclaimed(_, dir) = self else {
            return true;
        };
        match std::fs::create_dir(dir.join(case.name.replace("::", "."))) {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => false,
            Err(e) => panic!("cannot claim {} in {}: {e}", case.name, dir.display()),
        }
    }
}

/// A case of a room.
pub(crate) struct RoomCase {
    pub(crate) name: String,
    /// The shares it belongs to when nobody asked for it by name.
    pub(crate) shares: &'static [Share],
    pub(crate) run: Box<dyn Fn() + Send + Sync>,
}

/// Cases that run one after the other, or some at a time: they wait more than they work.
pub(crate) struct Room {
    pub(crate) cases: Vec<RoomCase>,
    pub(crate) at_a_time: usize,
}

pub(crate) fn of(cases: &[Case], shares: &'static [Share]) -> Vec<RoomCase> {
    let boxed = |(name, case): &Case| RoomCase {
        name: (*name).to_owned(),
        shares,
        run: Box::new(*case),
    };
    cases.iter().map(boxed).collect()
}

/// Runs the cases. No case that is wanted at all is a failure: something was misspelt.
pub(crate) fn run(rooms: &[Room], wanted: &Wanted) -> ExitCode {
    if !rooms
        .iter()
        .flat_map(|room| &room.cases)
        .any(|case| wanted.includes(case))
    {
        println!("no such case");
        return ExitCode::FAILURE;
    }
    let (passed, failed) = (Mutex::new(0), Mutex::new(Vec::<&str>::new()));
    for room in rooms {
        let queue = room.cases.iter().filter(|case| wanted.includes(case));
        let queue = Mutex::new(queue.filter(|case| wanted.claim(case)));
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
    ExitCode::from(u8::from(!failed.is_empty()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn guests_that_share_cases_run_each_once() {
        static TIMES: [Mutex<u32>; 40] = [const { Mutex::new(0) }; 40];
        let dir = tempfile::tempdir().unwrap();
        let line = format!("--share legacy --claims {}", dir.path().display());
        let guest = || {
            let case = |n: usize| RoomCase {
                name: format!("room::case-{n}"),
                shares: if n == 0 { &[Share::NfTables] } else { Share::BOTH },
                run: Box::new(move || *TIMES[n].lock().unwrap() += 1),
            };
            let room = Room {
                cases: (0..TIMES.len()).map(case).collect(),
                at_a_time: 4,
            };
            run(&[room], &Wanted::parse(words(&line)).unwrap())
        };
        std::thread::scope(|scope| {
            let guests = [scope.spawn(guest), scope.spawn(guest)];
            for ended in guests {
                assert_eq!(ended.join().unwrap(), ExitCode::SUCCESS);
            }
        });
        // one that comes late has nothing to do, and that is no failure
        assert_eq!(guest(), ExitCode::SUCCESS);
        let times: Vec<u32> = TIMES.iter().map(|times| *times.lock().unwrap()).collect();
        assert_eq!((times[0], &times[1..]), (0, [1; 39].as_slice()));
    }

    #[test]
    fn a_misspelt_name_is_a_failure() {
        let room = Room {
            cases: of(&[("room::case", || {})], Share::BOTH),
            at_a_time: 1,
        };
        assert_eq!(run(&[room], &Wanted::Named(words("roam"))), ExitCode::FAILURE);
        assert!(Wanted::parse(words("--share uml")).is_none());
    }
}
