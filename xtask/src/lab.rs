//! Pieces of the lab as programs.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ferry_lab::api::{Api, default_objects, generate::Cluster};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve a small Kubernetes API until interrupted
    Api(ApiArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ApiArgs {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// JSON files to begin with: an object, a List or an array of objects each
    files: Vec<PathBuf>,
    /// Begin with so many generated services
    #[arg(long, default_value_t = 0)]
    services: u32,
    /// Endpoints of each generated service
    #[arg(long, default_value_t = 5)]
    endpoints: u32,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Api(args) => api(args),
    }
}

fn api(args: &ApiArgs) -> Result<()> {
    let api = Api::start_at(args.listen)?;
    api.apply(default_objects())?;
    if args.services > 0 {
        api.apply(
            Cluster {
                services: args.services,
                endpoints: args.endpoints,
            }
            .objects(),
        )?;
    }
    for file in &args.files {
        let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let value =
            serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", file.display()))?;
        api.apply(objects(value))
            .with_context(|| format!("in {}", file.display()))?;
    }
    println!(
        "kubectl --server {} get services,endpointslices,nodes --all-namespaces",
        api.url()
    );
    println!(
        "curl --request PUT {}/_apply --data '[OBJECT, ...]'   also _delete, _cut, _expire, _faults",
        api.url()
    );
    println!("serving until interrupted");
    loop {
        std::thread::park();
    }
}

fn objects(value: serde_json::Value) -> Vec<serde_json::Value> {
    match value {
        serde_json::Value::Array(list) => list,
        list if list["items"].is_array() => list["items"].as_array().cloned().unwrap_or_default(),
        one => vec![one],
    }
}
