//! A cluster that lives through all cases, and how they ask it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::netns::{Answer, Outcome, Probe, Proto};
use serde_json::Value;

use crate::Stage;
use crate::objects::{self, Endpoint};

pub(super) const NODE: &str = "192.0.2.10";
pub(super) const NODE_PORT: u16 = 30911;
pub(super) const HEALTH_CHECK_NODE_PORT: u16 = 32911;
/// Enough for chance to meet every one of three endpoints.
pub(super) const MANY: u32 = 30;

pub(super) struct Run {
    pub(super) stage: Stage,
    /// Each case has addresses of its own, so that none meets the connections of another.
    pub(super) octet: u8,
    pub(super) made: Vec<Value>,
}

impl Run {
    pub(super) fn vip(&self) -> String {
        format!("10.96.7.{}", self.octet)
    }

    pub(super) fn name(&self) -> String {
        format!("case-{}", self.octet)
    }

    pub(super) fn service(&self) -> Value {
        objects::service(&self.name(), &[&self.vip()])
    }

    pub(super) fn node_port_service(&self) -> Value {
        let mut service = self.service();
        service["spec"]["type"] = "NodePort".into();
        service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
        service["spec"]["ports"][1]["nodePort"] = NODE_PORT.into();
        service["spec"]["externalTrafficPolicy"] = "Cluster".into();
        service
    }

    pub(super) fn slice(&self, endpoints: &[Endpoint]) -> Value {
        objects::slice(&self.name(), "IPv4", endpoints)
    }

    /// Changes the cluster; what is left at the end of the case is removed. Nobody waits for a sync: every question is asked
    /// until it is answered as it should be.
    pub(super) fn apply(&mut self, objects: &[Value]) -> Result<()> {
        let identity = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
        for object in objects {
            self.made.retain(|made| identity(made) != identity(object));
            self.made.push(object.clone());
        }
        self.stage.api().apply(objects.iter().cloned())
    }

    pub(super) fn delete(&mut self, object: &Value) -> Result<()> {
        self.stage.api().delete(std::slice::from_ref(object))
    }

    pub(super) fn probe(&self, from: &str, port: u16, proto: Proto) -> Result<Probe> {
        Ok(Probe::new(from, self.vip().parse()?, port, proto))
    }

    /// Exactly these answer, each as `name:port`.
    pub(super) fn answers(&mut self, probe: Probe, by: &[&str]) -> Result<()> {
        let by: BTreeSet<String> = by.iter().map(|name| (*name).to_owned()).collect();
        self.until(&probe, |outcome| {
            outcome.answers == BTreeSet::from([Answer::Ok]) && outcome.backends == by
        })
        .with_context(|| format!("wanted {by:?}"))
    }

    /// Nobody answers: how that looks depends on the mode and on what lies behind the address.
    pub(super) fn nobody_answers(&mut self, probe: Probe) -> Result<()> {
        self.until(&probe, |outcome| !outcome.answers.contains(&Answer::Ok))
            .context("wanted no answer")
    }

    pub(super) fn refused(&mut self, probe: Probe) -> Result<()> {
        self.until(&probe, |outcome| {
            outcome.answers == BTreeSet::from([Answer::Refused])
        })
        .context("wanted a refusal")
    }

    pub(super) fn until(&mut self, probe: &Probe, wanted: impl Fn(&Outcome) -> bool) -> Result<()> {
        let mut last = Vec::new();
        let came = ferry_lab::wait_until(Duration::from_secs(8), || {
            last = self
                .stage
                .network()
                .probe(std::slice::from_ref(probe))
                .unwrap_or_default();
            last.len() == 1 && last.iter().all(&wanted)
        });
        if !came {
            bail!("got {last:?}\n--- ferry's log\n{}", self.stage.log());
        }
        Ok(())
    }

    /// The health-check node port's code; none if nobody listens.
    pub(super) fn health_check_code(&self) -> Result<String> {
        let url = format!("http://{NODE}:{HEALTH_CHECK_NODE_PORT}/");
        let mut curl = self.stage.network().node().command("curl");
        let out = curl
            .args(["-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", &url])
            .output()?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    pub(super) fn health_check_is(&self, code: &str) -> Result<()> {
        let mut last = String::new();
        let came = ferry_lab::wait_until(Duration::from_secs(8), || {
            last = self.health_check_code().unwrap_or_default();
            last == code
        });
        ensure!(came, "the health-check node port says {last}, not {code}");
        Ok(())
    }
}

pub(super) fn node_port(from: &str, proto: Proto) -> Result<Probe> {
    Ok(Probe::new(from, NODE.parse()?, NODE_PORT, proto))
}
