//! Pieces of the lab as programs.

use anyhow::Result;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {}

pub(crate) fn run(command: &Command) -> Result<()> {
    match *command {}
}
