//! The binary: everything lives in the library, so that tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferry_app::run(std::env::args_os())
}
