//! What the log of the program looks like from outside.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// A time zone file without changes: this many seconds east of Greenwich.
fn zone_file(offset: i32, footer: &str) -> Vec<u8> {
    let header = |version: u8| {
        let mut bytes = b"TZif".to_vec();
        bytes.push(version);
        bytes.extend([0; 15]);
        // No leap seconds, no transitions, one type with a name of four bytes.
        for count in [0_u32, 0, 0, 0, 1, 4] {
            bytes.extend(count.to_be_bytes());
        }
        bytes.extend(offset.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(b"XXX\0");
        bytes
    };
    [header(b'2'), header(b'2'), format!("\n{footer}\n").into_bytes()].concat()
}

#[test]
fn the_log_tells_the_local_time() {
    let dir = tempfile::tempdir().unwrap();
    let zone = dir.path().join("zone");
    std::fs::write(&zone, zone_file(20_700, "XXX-5:45")).unwrap();
    let minute_of_day = |zone: &str| -> i64 {
        let output = Command::new(env!("CARGO_BIN_EXE_ferry"))
            .arg("--config=/nonexistent/file")
            .env("TZ", zone)
            .output()
            .unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        let line = log.lines().find(|line| line.contains("command failed")).unwrap();
        let time = line.split(' ').nth(1).unwrap();
        let number = |range: std::ops::Range<usize>| time[range].parse::<i64>().unwrap();
        number(0..2) * 60 + number(3..5)
    };
    let (here, there) = (minute_of_day(""), minute_of_day(zone.to_str().unwrap()));
    let ahead = (there - here).rem_euclid(24 * 60);
    assert!((345..=346).contains(&ahead), "{here} {there}");
}
