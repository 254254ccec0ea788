//! Credentials from a program (client.authentication.k8s.io): started, waited for within a limit, and understood.
//!
//! The program runs on a thread of its own, so that nothing else waits for it, in a process group of its own, so
//! that all of it can be ended, and ends when we do. Neither its arguments, its environment nor its output are ever
//! shown: they are what one gives secrets to.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use ferry_host::process::{self, Limits, RunError, Unattended};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::secret::Secret;
use super::settings::Trust;

pub(super) const V1: &str = "client.authentication.k8s.io/v1";
pub(super) const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";
/// The cluster's extension that is passed on to the program.
pub(super) const CLUSTER_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// An answer is a token and two PEM files at most.
const MAX_ANSWER: u64 = 1 << 20;

/// The program, and what it is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plugin {
    pub(super) command: PathBuf,
    pub(super) args: Vec<Secret>,
    pub(super) env: Vec<(String, Secret)>,
    pub(super) api_version: String,
    pub(super) install_hint: String,
    pub(super) cluster: Option<ClusterInfo>,
}

/// What a program that asked for it learns about the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClusterInfo {
    pub(super) server: String,
    pub(super) server_name: Option<String>,
    pub(super) trust: Trust,
    pub(super) proxy: Option<String>,
    pub(super) disable_compression: bool,
    pub(super) config: Option<Value>,
}

/// What a program answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Issued {
    pub(super) token: Option<Secret>,
    /// Certificate and key, in PEM.
    pub(super) certificate: Option<(Secret, Secret)>,
    pub(super) expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<Secret>,
    client_certificate_data: Option<Secret>,
    client_key_data: Option<Secret>,
}

impl Plugin {
    /// As a log names it: the program alone.
    pub(super) fn name(&self) -> String {
        self.command.display().to_string()
    }

    /// Runs the program; blocks, for no longer than `limit` and a moment.
    pub(super) fn run(&self, limit: Duration) -> Result<Issued, String> {
        let answer = self.output(limit).map_err(|reason| self.failure(&reason))?;
        self.read(&answer).map_err(|reason| self.failure(&reason))
    }

    fn failure(&self, reason: &str) -> String {
        format!("the credential plugin {} {reason}", self.name())
    }

    fn output(&self, limit: Duration) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.command);
        command
            .args(self.args.iter().map(Secret::expose))
            .envs(self.env.iter().map(|(name, value)| (name, value.expose())))
            .env("KUBERNETES_EXEC_INFO", self.request()?.to_string());
        let limits = Limits {
            time: limit,
            output: MAX_ANSWER,
        };
        match process::run(&mut command, &[], limits, &mut Unattended) {
            Ok(ran) if ran.status.success() => Ok(ran.stdout),
            Ok(ran) => Err(format!("failed: {}; run it by hand to see why", ran.status)),
            Err(RunError::Io(error)) => Err(self.not_started(&error)),
            Err(RunError::Timeout) => Err(format!("did not answer within {} s", limit.as_secs_f32())),
            Err(RunError::Ending) => Err("is not waited for any more".into()),
        }
    }

    fn not_started(&self, error: &std::io::Error) -> String {
        let hint: String = self
            .install_hint
            .chars()
            .filter(|c| !c.is_control() || *c == '\n')
            .collect();
        match hint.as_str() {
            "" => format!("cannot be started: {error}"),
            hint => format!("cannot be started: {error}; {hint}"),
        }
    }

    fn request(&self) -> Result<Value, String> {
        let mut spec = json!({"interactive": false});
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.describe()?;
        }
        Ok(json!({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec}))
    }

    fn read(&self, answer: &[u8]) -> Result<Issued, String> {
        // The reader's own words could repeat what it read.
        let credential: ExecCredential = serde_json::from_slice(answer)
            .map_err(|_| "answered with something that is no ExecCredential in JSON".to_owned())?;
        if credential.kind != "ExecCredential" || credential.api_version != self.api_version {
            return Err(format!(
                "did not answer with an ExecCredential of {}",
                self.api_version
            ));
        }
        let status = credential.status.ok_or("answered without a status")?;
        let given = |secret: Option<Secret>| secret.filter(|secret| !secret.is_empty());
        let certificate = match (
            given(status.client_certificate_data),
            given(status.client_key_data),
        ) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("answered with a certificate or a key, but not both".into()),
        };
        let token = given(status.token);
        if token.is_none() && certificate.is_none() {
            return Err("answered with neither a token nor a certificate".into());
        }
        let expires = match status.expiration_timestamp.as_deref() {
            None | Some("") => None,
            Some(text) => {
                let time: Timestamp = text
                    .parse()
                    .map_err(|_| "answered with an expirationTimestamp that is no time")?;
                Some(SystemTime::from(time))
            }
        };
        Ok(Issued {
            token,
            certificate,
            expires,
        })
    }
}

impl ClusterInfo {
    fn describe(&self) -> Result<Value, String> {
        let mut info = json!({"server": self.server});
        match &self.trust {
            Trust::System => {}
            Trust::Anyone => info["insecure-skip-tls-verify"] = true.into(),
            Trust::Authority(source) => {
                let bytes = source.read()?;
                info["certificate-authority-data"] = data_encoding::BASE64.encode(&bytes).into();
            }
        }
        if let Some(name) = &self.server_name {
            info["tls-server-name"] = name.as_str().into();
        }
        if let Some(proxy) = &self.proxy {
            info["proxy-url"] = proxy.as_str().into();
        }
        if self.disable_compression {
            info["disable-compression"] = true.into();
        }
        if let Some(config) = &self.config {
            info["config"] = config.clone();
        }
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Plugin {
        Plugin {
            command: "/bin/sh".into(),
            args: vec![Secret::new("-c".into()), Secret::new(script.into())],
            env: vec![("MINE".into(), Secret::new("s3cret".into()))],
            api_version: V1.into(),
            install_hint: String::new(),
            cluster: None,
        }
    }

    const ENOUGH: Duration = Duration::from_secs(60);

    fn answer(status: &str) -> String {
        format!(r#"echo '{{"kind":"ExecCredential","apiVersion":"{V1}","status":{status}}}'"#)
    }

    #[test]
    fn answers_are_understood() {
        let issued = shell(&answer(
            r#"{"token":"t","expirationTimestamp":"2030-01-02T03:04:05Z"}"#,
        ))
        .run(ENOUGH)
        .unwrap();
        assert_eq!(issued.token, Some(Secret::new("t".into())));
        let expires = issued
            .expires
            .unwrap()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(expires.as_secs(), 1_893_553_445);
        let pair = shell(&answer(r#"{"clientCertificateData":"c","clientKeyData":"k"}"#))
            .run(ENOUGH)
            .unwrap();
        assert_eq!(
            pair.certificate,
            Some((Secret::new("c".into()), Secret::new("k".into())))
        );
    }

    #[test]
    fn programs_are_told_what_they_are_asked_for() {
        let mut plugin = shell(&format!(
            "told=$(printf %s \"$KUBERNETES_EXEC_INFO$MINE\" | tr -d '\"'); \
             printf '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{V1}\",\"status\":{{\"token\":\"%s\"}}}}' \"$told\""
        ));
        plugin.cluster = Some(ClusterInfo {
            server: "https://api".into(),
            server_name: Some("name".into()),
            trust: Trust::Authority(super::super::settings::Source::Data(b"pem".as_slice().into())),
            proxy: Some("socks5://proxy".into()),
            disable_compression: true,
            config: Some(json!({"audience": "a"})),
        });
        let token = plugin.run(ENOUGH).unwrap().token.unwrap();
        for part in [
            "interactive:false",
            "server:https://api",
            "tls-server-name:name",
            "certificate-authority-data:cGVt",
            "proxy-url:socks5://proxy",
            "disable-compression:true",
            "config:{audience:a}",
            "s3cret",
        ] {
            assert!(token.expose().contains(part), "{part} in {}", token.expose());
        }
    }

    #[test]
    fn failures_say_what_happened_and_repeat_nothing() {
        for (script, reason) in [
            ("echo s3cret; echo s3cret >&2; exit 3", "failed: exit status: 3"),
            ("echo '{\"token\": \"s3cret\"'", "no ExecCredential in JSON"),
            (&answer("null"), "without a status"),
            (&answer("{}"), "neither a token nor a certificate"),
            (&answer(r#"{"clientKeyData":"s3cret"}"#), "not both"),
            (
                &answer(r#"{"token":"s3cret","expirationTimestamp":"s3cret"}"#),
                "no time",
            ),
            (&answer(r#"{"token":["s3cret"]}"#), "no ExecCredential in JSON"),
            (
                r#"echo '{"kind":"ExecCredential","apiVersion":"v2","status":{}}'"#,
                "did not answer with",
            ),
            ("head -c 2000000 /dev/zero", "failed: exit status: 1"),
        ] {
            let error = shell(script).run(ENOUGH).unwrap_err();
            assert!(
                error.starts_with("the credential plugin /bin/sh ") && error.contains(reason),
                "{error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
        let mut missing = shell("");
        missing.command = "/nowhere/plugin".into();
        missing.install_hint = "get it from\x1b[1m there".into();
        let error = missing.run(ENOUGH).unwrap_err();
        assert!(
            error.contains("cannot be started: No such file") && error.contains("get it from[1m there"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_all_that_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; wait", mark.display());
        let start = Instant::now();
        let error = shell(&script).run(Duration::from_millis(500)).unwrap_err();
        assert!(error.contains("did not answer within 0.5 s"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
        let pid = std::fs::read_to_string(&mark).unwrap();
        let gone = ferry_lab::wait_until(Duration::from_secs(20), || {
            // Whoever inherits it may take its time to reap it.
            std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
                .map_or(true, |stat| stat.contains(") Z "))
        });
        assert!(gone, "{pid}");
    }
}
