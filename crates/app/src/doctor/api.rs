//! Whether the API server can be reached and lets this account do what a proxy does.

use std::time::{Duration, SystemTime};

use ferry_sources::kube::{Api, Trouble};
use http::{Method, Request, header};
use jiff::fmt::rfc2822;
use serde::Deserialize;
use serde_json::json;

use super::{Finding, Verdict};
use crate::config::ApiClient;

const WITHIN: Duration = Duration::from_secs(10);

/// What a proxy does: group, resource, verb, and what becomes of it otherwise.
const NEEDED: [(&str, &str, &str, Verdict); 10] = [
    ("", "services", "list", Verdict::Problem),
    ("", "services", "watch", Verdict::Problem),
    ("discovery.k8s.io", "endpointslices", "list", Verdict::Problem),
    ("discovery.k8s.io", "endpointslices", "watch", Verdict::Problem),
    ("", "nodes", "list", Verdict::Problem),
    ("", "nodes", "watch", Verdict::Problem),
    ("networking.k8s.io", "servicecidrs", "list", Verdict::Warning),
    ("networking.k8s.io", "servicecidrs", "watch", Verdict::Warning),
    ("events.k8s.io", "events", "create", Verdict::Warning),
    ("events.k8s.io", "events", "patch", Verdict::Warning),
];

const ROLE: &str =
    "bind the account to the ClusterRole system:node-proxier (deploy/kubernetes/base/rbac.yaml does)";

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    #[serde(default)]
    allowed: bool,
}

/// An answer's body, and the server's clock.
struct Answer {
    body: Vec<u8>,
    date: Option<SystemTime>,
}

pub(super) fn all(client: &ApiClient, node: &str) -> anyhow::Result<Vec<Finding>> {
    let api = match crate::daemon::connection(client).connect() {
        Ok(api) => api,
        Err(error) => {
            let remedy =
                "give a kubeconfig with --kubeconfig, or run this where a service account is mounted";
            let found = error.to_string();
            return Ok(vec![Finding::bad("api", Verdict::Problem, found, remedy)]);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(ask(&api, node)))
}

async fn ask(api: &Api, node: &str) -> Vec<Finding> {
    let first = match send(api, Method::GET, &format!("/api/v1/nodes/{node}"), Vec::new()).await {
        Err(trouble @ (Trouble::Unreachable { .. } | Trouble::Slow { .. })) => {
            let remedy = "see whether the address is that of the API server and not of the Service \"kubernetes\", \
                          which is served by the proxy itself; whether a firewall is in between; whether certificates fit";
            return vec![Finding::bad("api", Verdict::Problem, trouble.to_string(), remedy)];
        }
        Err(trouble @ Trouble::Status { code: 401, .. }) => {
            let remedy = "the server does not know this account: give another token or certificate";
            return vec![Finding::bad("api", Verdict::Problem, trouble.to_string(), remedy)];
        }
        answer => answer,
    };
    let mut findings = vec![match &first {
        Ok(_) => Finding::ok("node", format!("the Node {node} is known")),
        Err(trouble @ Trouble::Status { code: 404, .. }) => Finding::bad(
            "node",
            Verdict::Problem,
            trouble.to_string(),
            "give the Node's name with --hostname-override; the host's is taken otherwise",
        ),
        Err(trouble) => Finding::bad("node", Verdict::Warning, trouble.to_string(), ROLE),
    }];
    let date = first.ok().and_then(|answer| answer.date);
    findings.extend(date.map(|theirs| clock(theirs, SystemTime::now())));
    findings.extend(rights(api).await);
    findings
}

/// Tokens and certificates are good for a time, so both clocks must agree on it.
fn clock(theirs: SystemTime, ours: SystemTime) -> Finding {
    let behind = theirs.duration_since(ours);
    let (seconds, how) = match &behind {
        Ok(time) => (time.as_secs(), "behind"),
        Err(error) => (error.duration().as_secs(), "ahead of"),
    };
    let verdict = match seconds {
        0..=5 => return Finding::ok("clock", "agrees with the API server's"),
        6..=120 => Verdict::Warning,
        _ => Verdict::Problem,
    };
    let found =
        format!("this clock is {seconds} s {how} the API server's: tokens and certificates may be refused");
    let remedy = "synchronise clocks, for instance with chrony or systemd-timesyncd";
    Finding::bad("clock", verdict, found, remedy)
}

async fn rights(api: &Api) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (group, resource, verb, verdict) in NEEDED {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"group": group, "resource": resource, "verb": verb}},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = send(api, Method::POST, path, review.to_string().into_bytes()).await;
        let review = answer.map(|answer| serde_json::from_slice::<Review>(&answer.body));
        match review {
            Ok(Ok(review)) if review.status.allowed => {}
            Ok(Ok(_)) => {
                let dot = if group.is_empty() { "" } else { "." };
                let found = format!("this account may not {verb} {resource}{dot}{group}");
                findings.push(Finding::bad("api", verdict, found, ROLE));
            }
            Ok(Err(error)) => findings.push(unanswered(&error.to_string())),
            Err(trouble) => {
                findings.push(unanswered(&trouble.to_string()));
                break;
            }
        }
    }
    if findings.is_empty() {
        let found = format!("{} lets this account do all that a proxy does", api.server());
        findings.push(Finding::ok("api", found));
    }
    findings
}

fn unanswered(why: &str) -> Finding {
    Finding::bad(
        "api",
        Verdict::Warning,
        format!("the server does not say what this account may do: {why}"),
        "ask it by hand: kubectl auth can-i list services --all-namespaces",
    )
}

async fn send(api: &Api, method: Method, path: &str, body: Vec<u8>) -> Result<Answer, Trouble> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .map_err(|error| Trouble::Unreachable {
            url: path.to_owned(),
            reason: error.to_string(),
        })?;
    let response = api.send(request, WITHIN).await?;
    let date = response.headers().get(header::DATE).and_then(|date| {
        let date = rfc2822::DateTimeParser::new()
            .parse_timestamp(date.to_str().ok()?)
            .ok()?;
        Some(SystemTime::from(date))
    });
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|reason| Trouble::Garbage {
            url: path.to_owned(),
            reason,
        })?;
        bytes.extend_from_slice(&piece);
    }
    Ok(Answer { body: bytes, date })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_by_seconds() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let at = |seconds: i64| {
            let theirs = if seconds < 0 {
                now - Duration::from_secs(seconds.unsigned_abs())
            } else {
                now + Duration::from_secs(seconds.unsigned_abs())
            };
            clock(theirs, now)
        };
        assert_eq!(at(3).verdict, Verdict::Ok);
        assert_eq!(at(-60).verdict, Verdict::Warning);
        let far = at(400);
        assert_eq!(far.verdict, Verdict::Problem);
        assert!(
            far.found.starts_with("this clock is 400 s behind"),
            "{}",
            far.found
        );
    }
}
