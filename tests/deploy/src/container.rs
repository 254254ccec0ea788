//! A container of the DaemonSet, run from the unpacked image as a kubelet and its runtime would: by runc, on the node of
//! the lab's network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use ferry_lab::netns::Network;
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use serde_json::{Value, json};

use crate::serving::{MANIFESTS, Running};
use crate::{Mode, kustomize, objects, repository};

/// The image as `umoci unpack` left it: `rootfs` and a `config.json`.
pub fn bundle() -> Result<PathBuf> {
    let path = std::env::var_os("FERRY_BUNDLE").context("FERRY_BUNDLE is not set: run cargo xtask deploy")?;
    Ok(PathBuf::from(path))
}

/// Who the container's process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// As the manifests say: root, with few capabilities.
    Root,
    /// Nobody in particular, who has the same capabilities as ambient ones.
    Other(u32),
}

/// A pod of the overlay of a mode, on a node of its own.
#[derive(Debug)]
pub struct Pod {
    pub network: Network,
    spec: PodSpec,
    dir: tempfile::TempDir,
}

impl Pod {
    /// What its volumes hold is laid out; nothing runs.
    pub fn of(mode: Mode) -> Result<Pod> {
        let objects = objects(&kustomize(&format!("overlays/{}", mode.as_str()))?)?;
        let spec = objects.daemons.spec.and_then(|daemons| daemons.template.spec);
        let files = objects.config.and_then(|config| config.data).unwrap_or_default();
        let dir = tempfile::tempdir()?;
        for name in ["config", "run", "services", "modules"] {
            fs::create_dir(dir.path().join(name))?;
        }
        // a namespace may not change what is the whole machine's
        let config = format!("{}conntrack: {{maxPerCore: 0}}\n", files["config.conf"]);
        fs::write(dir.path().join("config/config.conf"), config)?;
        fs::write(dir.path().join("services/all.yaml"), MANIFESTS)?;
        fs::write(dir.path().join("xtables.lock"), "")?;
        Ok(Pod {
            network: Network::up()?,
            spec: spec.context("a DaemonSet without a pod")?,
            dir,
        })
    }

    /// Takes a volume away from its containers.
    pub fn without(mut self, volume: &str) -> Pod {
        let containers = self.spec.containers.iter_mut();
        for container in containers.chain(self.spec.init_containers.iter_mut().flatten()) {
            let mounts = container.volume_mounts.get_or_insert_default();
            mounts.retain(|mount| mount.name != volume);
        }
        self
    }

    /// The container that stays.
    pub fn main(&self) -> Result<&Container> {
        self.spec.containers.first().context("a pod without containers")
    }

    /// The container that prepares the node.
    pub fn set_up(&self) -> Result<&Container> {
        let mut containers = self.spec.init_containers.iter().flatten();
        containers.next().context("a pod without init containers")
    }

    /// Runs a container to its end.
    pub fn run(&self, container: &Container) -> Result<Output> {
        let bundle = self.lay_out(container, User::Root)?;
        let mut runc = self.runc(container);
        Ok(runc
            .args(["run", "--bundle"])
            .arg(bundle)
            .arg(self.id(container))
            .output()?)
    }

    /// Starts a container, which ends with what is returned.
    pub fn start(&self, container: &Container, user: User) -> Result<Started<'_>> {
        if let User::Other(id) = user {
            std::os::unix::fs::chown(self.dir.path().join("run"), Some(id), Some(id))?;
        }
        let bundle = self.lay_out(container, user)?;
        let mut runc = self.runc(container);
        runc.args(["run", "--bundle"]).arg(bundle).arg(self.id(container));
        Ok(Started {
            pod: self,
            container: container.clone(),
            _running: Running::start(&mut runc, &self.log())?,
        })
    }

    /// What the started container has said.
    pub fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Cgroups go by it, so it differs from what other pods of this machine have.
    fn id(&self, container: &Container) -> String {
        let pod = self.dir.path().file_name().unwrap_or_default();
        let pod = pod.to_string_lossy();
        format!("ferry-{}-{}", pod.trim_start_matches('.'), container.name)
    }

    fn runc(&self, container: &Container) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root")
            .arg(self.dir.path().join(format!("state-{}", container.name)));
        runc
    }

    /// The runtime's configuration: what umoci made of the image, and what the manifest says of the container.
    fn lay_out(&self, container: &Container, user: User) -> Result<PathBuf> {
        let image = bundle()?;
        let mut config: Value = serde_json::from_slice(&fs::read(image.join("config.json"))?)?;
        let context = container
            .security_context
            .as_ref()
            .context("no security context")?;
        let privileged = context.privileged == Some(true);
        let capabilities = if privileged {
            all_capabilities()?
        } else {
            let added = context.capabilities.as_ref().and_then(|c| c.add.as_ref());
            let added = added.into_iter().flatten();
            added.map(|name| format!("CAP_{name}")).collect()
        };
        let (id, ambient) = match user {
            User::Root => (0, Vec::new()),
            User::Other(id) => (id, capabilities.clone()),
        };
        config["process"] = json!({
            "terminal": false,
            "cwd": "/",
            "user": {"uid": id, "gid": id},
            "args": arguments(container),
            "env": config["process"]["env"],
            "noNewPrivileges": context.allow_privilege_escalation == Some(false),
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                "inheritable": ambient, "ambient": ambient,
            },
        });
        config["root"] = json!({
            "path": "rootfs", "readonly": context.read_only_root_filesystem == Some(true),
        });
        self.mount(container, &mut config)?;
        let linux = &mut config["linux"];
        // the node's network is the pod's
        let namespaces = linux["namespaces"].as_array_mut().context("namespaces")?;
        namespaces.retain(|namespace| namespace["type"] != "network");
        namespaces.push(json!({"type": "network", "path": self.network.node().path()}));
        if privileged {
            linux["maskedPaths"] = json!([]);
            linux["readonlyPaths"] = json!([]);
        } else {
            let profile = fs::read(repository().join("deploy/seccomp/ferry.json"))?;
            linux["seccomp"] = serde_json::from_slice(&profile)?;
        }
        let bundle = self.dir.path().join(format!("bundle-{}", container.name));
        fs::create_dir_all(&bundle)?;
        // of its own, because the runtime makes mount points in it
        let mut copy = Command::new("cp");
        copy.args(["--archive", "--link"]);
        let copied = copy.arg(image.join("rootfs")).arg(&bundle).status()?;
        ensure!(copied.success(), "cp: {copied}");
        fs::write(bundle.join("config.json"), serde_json::to_vec(&config)?)?;
        Ok(bundle)
    }

    fn mount(&self, container: &Container, config: &mut Value) -> Result<()> {
        let mounts = config["mounts"].as_array_mut().context("mounts")?;
        let mut bind = |from: PathBuf, to: &str, read_only: bool| {
            let options = ["rbind", if read_only { "ro" } else { "rw" }];
            mounts.push(json!({"source": from, "destination": to, "type": "bind", "options": options}));
        };
        for mount in container.volume_mounts.iter().flatten() {
            let volumes = self.spec.volumes.iter().flatten();
            let volume = volumes.clone().find(|volume| volume.name == mount.name);
            let from = self.source(volume.with_context(|| format!("no volume {}", mount.name))?)?;
            bind(from, &mount.mount_path, mount.read_only == Some(true));
        }
        bind(self.dir.path().join("services"), "/services", true);
        Ok(())
    }

    /// Where this machine has what a volume stands for: the node's own files stay as they are.
    fn source(&self, volume: &Volume) -> Result<PathBuf> {
        let name = match (&volume.config_map, &volume.host_path) {
            (Some(_), None) => "config",
            (None, Some(host)) => match host.path.as_str() {
                "/run/ferry" => "run",
                "/run/xtables.lock" => "xtables.lock",
                "/lib/modules" if Path::new("/lib/modules").is_dir() => return Ok("/lib/modules".into()),
                "/lib/modules" => "modules",
                other => anyhow::bail!("the pod wants {other} of the node"),
            },
            _ => anyhow::bail!("volume {}: neither a ConfigMap nor the node's", volume.name),
        };
        Ok(self.dir.path().join(name))
    }
}

/// What the container starts, with services from a directory.
fn arguments(container: &Container) -> Vec<String> {
    let command = container.command.iter().chain(&container.args).flatten();
    command
        .map(|word| word.replace("$(NODE_NAME)", "node-a"))
        .chain(["--manifests=/services".to_owned()])
        .collect()
}

/// Those that can be had here: a machine that runs tests may be confined itself.
fn all_capabilities() -> Result<Vec<String>> {
    let out = Command::new("setpriv").arg("--dump").output()?;
    ensure!(out.status.success(), "setpriv --dump: {}", out.status);
    let told = String::from_utf8(out.stdout)?;
    let mut lines = told.lines();
    let names = lines.find_map(|line| line.strip_prefix("Capability bounding set: "));
    let names = names.context("setpriv does not tell the bounding set")?;
    Ok(names
        .split(',')
        .map(|name| format!("CAP_{}", name.to_uppercase()))
        .collect())
}

/// A container that runs.
#[derive(Debug)]
pub struct Started<'a> {
    pod: &'a Pod,
    container: Container,
    _running: Running,
}

impl Started<'_> {
    /// A line of the process's status file.
    pub fn status(&self, key: &str) -> Result<String> {
        let out = self
            .pod
            .runc(&self.container)
            .args(["state", &self.pod.id(&self.container)])
            .output()?;
        let state: Value = serde_json::from_slice(&out.stdout)?;
        let status = fs::read_to_string(format!("/proc/{}/status", state["pid"]))?;
        let mut lines = status
            .lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        Ok(lines.next().context("no such line")?.to_owned())
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let mut runc = self.pod.runc(&self.container);
        let _ = runc
            .args(["delete", "--force", &self.pod.id(&self.container)])
            .stderr(Stdio::null())
            .status();
    }
}
