//! Runs cases one after the other, says how long each took, and gives one verdict.

use std::process::ExitCode;
use std::time::Instant;

/// A named case: it panics when what it tests does not hold.
pub(crate) type Case = (&'static str, fn());

/// Runs the cases whose names contain the filter. No case at all is a failure: something was misspelt.
pub(crate) fn run(rooms: &[&[Case]], filter: Option<&str>) -> ExitCode {
    let wanted = rooms
        .iter()
        .flat_map(|room| room.iter())
        .filter(|(name, _)| filter.is_none_or(|f| name.contains(f)));
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, case) in wanted {
        let begun = Instant::now();
        // On a thread of its own, which may change to another network namespace and goes with it.
        let ended = std::thread::spawn(*case).join();
        let seconds = begun.elapsed().as_secs_f32();
        match ended {
            Ok(()) => {
                passed += 1;
                println!("ok   {name} ({seconds:.1} s)");
            }
            Err(_) => {
                failed.push(*name);
                println!("FAIL {name} ({seconds:.1} s)");
            }
        }
    }
    println!("{passed} passed, {} failed {failed:?}", failed.len());
    ExitCode::from(u8::from(passed == 0 || !failed.is_empty()))
}
