//! Commands that show a running node: its flows, all of it in one file, or in a browser.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use super::print;
use crate::cli::{Invocation, Output, invalid};
use crate::clock::local;
use crate::flows::FlowsReport;
use crate::status::{self, FlowsRequest};
use crate::web::Remote;

/// Over how long rates are taken.
const WINDOW_SECONDS: f64 = 1.0;

/// `ferry flows`
pub fn flows(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let (output, service) = (invocation.output()?, invocation.service()?);
    let socket = invocation.socket();
    let watch = invocation.typed.extra.watch;
    let request = FlowsRequest {
        service,
        seconds: if watch { WINDOW_SECONDS } else { 0.0 },
    };
    loop {
        let report = status::ask_flows(&socket, request.clone())?;
        if !watch {
            return print(output, &report);
        }
        if show(output, &report).is_err() {
            // Whoever read it has gone.
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// One picture after another: a table with its time, or a line of JSON.
fn show(output: Output, report: &FlowsReport) -> std::io::Result<()> {
    let text = match output {
        Output::Text => {
            let now = local(SystemTime::now()).strftime("%H:%M:%S").to_string();
            format!("{now}\n{report}\n")
        }
        Output::Json => serde_json::to_string(report)? + "\n",
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// `ferry bundle`
pub fn bundle(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let named = &invocation.typed.extra.file;
    let path = if named.is_empty() {
        let now = local(SystemTime::now()).strftime("%Y%m%d-%H%M%S").to_string();
        PathBuf::from(format!("ferry-bundle-{now}.tar"))
    } else {
        PathBuf::from(named)
    };
    let missing = crate::bundle::write(&path, &invocation.socket())?;
    for what in &missing {
        eprintln!("not in it: {what}");
    }
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// `ferry web`
pub fn web(invocation: Invocation) -> anyhow::Result<ExitCode> {
    invocation.no_arguments()?;
    let extra = &invocation.typed.extra;
    let address: SocketAddr = extra
        .listen
        .parse()
        .map_err(|_| invalid("--listen", &extra.listen, "must be an address and a port"))?;
    let remote = if extra.allow_remote {
        Remote::Allowed
    } else {
        Remote::Refused
    };
    crate::web::run(&invocation.socket(), address, remote)?;
    Ok(ExitCode::SUCCESS)
}
