//! All that a plan depends on, in a form that travels: Kubernetes objects, the host's addresses, the configuration. The
//! running daemon tells it, a bundle holds it, and a plan is made of it elsewhere. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, ensure};
use ferry_model::{Event, Host, Planner};
use ferry_sources::convert::{self, Interner};
use ferry_sources::manifests::{Format, read};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::flags::Typed;
use crate::config::values::Word;
use crate::config::{self, Settings};
use crate::daemon;
use crate::modes::Mode;
use crate::status::AddressSource;

/// Everything that is known, and how the daemon that knows it is set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Which form this is.
    pub form: u32,
    /// Our Node.
    pub node: String,
    /// A KubeProxyConfiguration. There are no secrets in it: credentials are in files that it only names.
    pub configuration: Value,
    /// Every address of every interface of the host.
    pub host_addresses: Vec<IpAddr>,
    /// Services, EndpointSlices, the Node and ServiceCIDRs, with the fields that a service proxy knows.
    pub objects: Vec<Value>,
    /// What is not served, and why.
    #[serde(default)]
    pub skipped: Vec<String>,
}

impl Facts {
    /// The form that this program writes, and the newest that it reads.
    pub const FORM: u32 = 1;

    /// Of a snapshot's facts.
    pub fn of(facts: &[Event], settings: &Settings, node: &str, skipped: Vec<String>) -> Self {
        let configz: Value = serde_json::from_str(&settings.configz).unwrap_or_default();
        let host = facts.iter().find_map(|fact| match fact {
            Event::Host(host) => Some(host.addresses.iter().copied().collect()),
            _ => None,
        });
        Self {
            form: Self::FORM,
            node: node.to_owned(),
            configuration: configz["kubeproxy.config.k8s.io"].clone(),
            host_addresses: host.unwrap_or_default(),
            objects: facts
                .iter()
                .filter_map(|fact| convert::object(fact, node))
                .collect(),
            skipped,
        }
    }

    /// The objects as one document.
    pub fn manifest(&self) -> String {
        json!({"apiVersion": "v1", "kind": "List", "items": self.objects}).to_string()
    }

    /// The settings of the daemon that told them, in another mode if one is named.
    pub fn settings(&self, mode: Option<Word<Mode>>) -> anyhow::Result<Settings> {
        settings_of(&self.configuration.to_string(), mode)
    }

    /// What a daemon with these settings would decide on their node.
    pub fn plan(&self, settings: &Settings, addresses: AddressSource) -> anyhow::Result<Planner> {
        ensure!(
            self.form <= Self::FORM,
            "these facts have form {}; this program knows {} and older ones",
            self.form,
            Self::FORM
        );
        let changes = read(self.manifest().as_bytes(), Format::Json, &Interner::default());
        let changes = changes.map_err(|broken| anyhow::anyhow!("the objects cannot be read: {broken}"))?;
        let mut events: Vec<Event> = changes.into_iter().flat_map(|change| change.events).collect();
        let host = match addresses {
            AddressSource::Host => Host {
                addresses: self.host_addresses.iter().copied().collect(),
            },
            AddressSource::NodeObject | AddressSource::Unknown => host_of(&events),
        };
        events.push(Event::Host(Arc::new(host)));
        let options = daemon::plan_options(settings, self.node.as_str().into());
        let mut planner = Planner::new(options);
        planner.update(events);
        Ok(planner)
    }
}

/// The settings that a configuration file's text asks for, in another mode if one is named.
pub fn settings_of(text: &str, mode: Option<Word<Mode>>) -> anyhow::Result<Settings> {
    let completed = config::complete_written(text, mode)?;
    completed
        .validate(Arc::new(Typed::default()))
        .context("the configuration")
}

/// A host of which no more is known than its Node says.
pub fn host_of(facts: &[Event]) -> Host {
    let own = facts.iter().filter_map(|fact| match fact {
        Event::Node(Some(node)) => Some(node.addresses.iter().copied()),
        _ => None,
    });
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    Host {
        addresses: own.flatten().chain(loopback).collect(),
    }
}
