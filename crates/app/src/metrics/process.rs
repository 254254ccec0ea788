//! `process_*`: what every Prometheus client exposes about its process.

use super::text::{Kind, Text};

pub(super) fn write(text: &mut Text) {
    let Ok(usage) = ferry_host::process::usage() else {
        return;
    };
    let mut one = |name, kind, help, value: f64| {
        text.family(name, kind, help);
        text.sample(name, [], value);
    };
    let cpu = usage.cpu.as_secs_f64();
    one(
        "process_cpu_seconds_total",
        Kind::Counter,
        "Total user and system CPU time spent in seconds.",
        cpu,
    );
    let max = usage.max_files as f64;
    one(
        "process_max_fds",
        Kind::Gauge,
        "Maximum number of open file descriptors.",
        max,
    );
    one(
        "process_open_fds",
        Kind::Gauge,
        "Number of open file descriptors.",
        usage.open_files as f64,
    );
    let resident = usage.resident as f64;
    one(
        "process_resident_memory_bytes",
        Kind::Gauge,
        "Resident memory size in bytes.",
        resident,
    );
    write_start(text);
    let name = "process_virtual_memory_bytes";
    text.family(name, Kind::Gauge, "Virtual memory size in bytes.");
    text.sample(name, [], usage.virtual_memory as f64);
}

pub(super) fn write_start(text: &mut Text) {
    let Ok(usage) = ferry_host::process::usage() else {
        return;
    };
    let name = "process_start_time_seconds";
    text.family(
        name,
        Kind::Gauge,
        "Start time of the process since unix epoch in seconds.",
    );
    text.sample(name, [], usage.started.as_secs_f64());
}
