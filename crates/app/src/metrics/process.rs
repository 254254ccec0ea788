//! `process_*`: what every Prometheus client exposes about its process.

use ferry_host::process::usage;

use super::vector::{Count, Level};
use super::{Catalogue, Text};

pub(super) fn write(catalogue: &Catalogue, text: &mut Text) {
    let Ok(usage) = usage() else {
        return;
    };
    catalogue
        .process_cpu
        .write_one(text, Count(usage.cpu.as_secs_f64()));
    let counts = [
        (&catalogue.process_received, usage.received),
        (&catalogue.process_transmitted, usage.transmitted),
    ];
    for (family, value) in counts {
        family.write_one(text, Count(value as f64));
    }
    let levels = [
        (&catalogue.process_max_files, usage.max_files),
        (&catalogue.process_open_files, usage.open_files),
        (&catalogue.process_resident, usage.resident),
        (&catalogue.process_virtual, usage.virtual_memory),
        (&catalogue.process_max_virtual, usage.max_virtual_memory),
    ];
    for (family, value) in levels {
        family.write_one(text, Level(value as f64));
    }
    catalogue
        .process_start
        .write_one(text, Level(usage.started.as_secs_f64()));
}

pub(super) fn write_start(catalogue: &Catalogue, text: &mut Text) {
    if let Ok(usage) = usage() {
        catalogue
            .process_start
            .write_one(text, Level(usage.started.as_secs_f64()));
    }
}
