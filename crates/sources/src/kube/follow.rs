//! Follows one resource until it is dropped: lists it, watches it, begins again where that stopped.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Timing;
use super::api::{Answer, Api, Trouble};
use super::backoff::{Backoff, jittered};
use super::frame::Encoding;
use super::health::{Contact, Health};
use super::intake::Intake;
use super::protocol::{End, Streaming, can_resume};
use super::resource::{List, Resource, Start};
use crate::assemble::Mailbox;
use crate::convert::Interner;

/// So many watches in a row may end at once before lists take their place. A server that shuts down ends one or two.
const FRUITLESS_LIMIT: u32 = 3;

/// While lists take the place of watches, a list is followed by so many times its duration of rest.
const REST: u32 = 20;

pub(super) struct Follower {
    api: Api,
    /// What is asked for, and what came last.
    preferred: Encoding,
    spoken: Encoding,
    pub(super) timing: Timing,
    pub(super) intake: Intake,
    pub(super) health: Health,
    contact: Arc<Contact>,
    mailbox: Arc<Mailbox>,
    backoff: Backoff,
    /// For a resource that the cluster does not serve.
    missing: Backoff,
    /// The version up to which everything is known; `None` before a list and when it is not to be trusted.
    pub(super) position: Option<String>,
    /// The list that is asked for where it is not streamed.
    pub(super) list: List,
    pub(super) list_time: Duration,
    streaming: Streaming,
    /// Watches in a row that ended before they brought anything.
    fruitless: u32,
    /// The server did not answer for a while. It may have been restored from a backup.
    is_unsure: bool,
    /// Credentials were refused, and presented again at once: they may have been replaced a moment ago.
    presented_again: bool,
    pub(super) quiet: Quiet,
}

/// When a watch that says nothing is doubted.
pub(super) struct Quiet {
    pub(super) check_at: Instant,
    pub(super) list_at: Instant,
}

impl Quiet {
    pub(super) fn new(timing: &Timing) -> Self {
        let now = Instant::now();
        Quiet {
            check_at: now + jittered(timing.check_after),
            list_at: now + jittered(timing.list_after),
        }
    }
}

impl Follower {
    pub(super) fn new(
        api: Api,
        mailbox: Arc<Mailbox>,
        interner: Arc<Interner>,
        contact: Arc<Contact>,
        timing: Timing,
        resource: Resource,
    ) -> Self {
        Follower {
            preferred: api.preferred(),
            spoken: Encoding::Json,
            api,
            health: Health::new(mailbox.clone(), contact.clone(), resource.name()),
            intake: Intake::new(resource, mailbox.clone(), interner),
            contact,
            mailbox,
            backoff: Backoff::new(timing.backoff_first, timing.backoff_most),
            missing: Backoff::new(timing.backoff_first, timing.missing),
            position: None,
            list: List::Cached,
            list_time: Duration::ZERO,
            streaming: Streaming::Wanted,
            fruitless: 0,
            is_unsure: false,
            presented_again: false,
            quiet: Quiet::new(&timing),
            timing,
        }
    }

    pub(super) async fn run(mut self) {
        let contact = self.contact.clone();
        loop {
            let wait = match self.attempt().await {
                Ok(()) => continue,
                Err(end) => self.judge(end).await,
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = contact.recovery(), if self.health.sees_outage() => {}
            }
        }
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Answer, Trouble> {
        let answer = self.api.get(path, self.preferred, self.timing.answer).await?;
        self.spoken = answer.encoding;
        Ok(answer)
    }

    async fn attempt(&mut self) -> Result<(), End> {
        match self.position.clone() {
            Some(version) => {
                if self.is_unsure {
                    self.check_history().await?;
                    self.is_unsure = false;
                }
                self.watch(Start::After(version)).await
            }
            None if self.streaming == Streaming::Wanted => self.watch(Start::Everything).await,
            None => self.list().await,
        }
    }

    /// What to do about the end of an attempt; tells how long to wait before the next.
    async fn judge(&mut self, end: End) -> Duration {
        let resource = self.intake.resource.name();
        match end {
            End::NoStreaming(streaming) => {
                tracing::debug!(resource, "the list is not streamed");
                self.streaming = streaming;
                Duration::ZERO
            }
            End::Closed => {
                self.look_for_slices().await;
                Duration::ZERO
            }
            End::Doubted(reason) => {
                tracing::info!(resource, reason, "listing again");
                self.position = None;
                Duration::ZERO
            }
            End::Expired => {
                tracing::debug!(resource, "the version has expired, listing again");
                self.position = None;
                self.fruitless += 1;
                if self.fruitless >= FRUITLESS_LIMIT {
                    let reason = "the version that was just listed has expired (410)";
                    self.health.watches_end(self.api.server(), self.fruitless, reason);
                }
                if self.fruitless == 1 {
                    Duration::ZERO
                } else {
                    self.poll_interval()
                }
            }
            End::Fruitless(reason) => {
                self.fruitless += 1;
                if self.fruitless < FRUITLESS_LIMIT {
                    tracing::debug!(resource, "the watch ended at once: {reason}");
                    return jittered(self.timing.backoff_first / 4);
                }
                self.position = None;
                self.health
                    .watches_end(self.api.server(), self.fruitless, &reason);
                if self.fruitless == FRUITLESS_LIMIT {
                    Duration::ZERO
                } else {
                    self.poll_interval()
                }
            }
            End::Trouble(trouble) => self.judge_trouble(&trouble),
        }
    }

    /// The time between two lists where watches do not work. Small clusters can afford to see changes soon.
    fn poll_interval(&mut self) -> Duration {
        self.backoff
            .next_within(self.timing.poll.max(self.list_time * REST))
    }

    fn judge_trouble(&mut self, trouble: &Trouble) -> Duration {
        if !can_resume(trouble) {
            self.position = None;
        }
        if self.preferred == Encoding::Protobuf && self.is_no_protobuf(trouble) {
            let resource = self.intake.resource.name();
            tracing::info!(resource, "no use in protobuf, asking for JSON: {trouble}");
            self.preferred = Encoding::Json;
            return Duration::ZERO;
        }
        let Trouble::Status {
            code, retry_after, ..
        } = trouble
        else {
            self.note(trouble);
            return self.backoff.next();
        };
        if self.health.sees_outage() {
            // The server is there again; what it has to say may change soon.
            self.backoff.reset();
        }
        if *code == 401 && !self.presented_again {
            tracing::debug!("credentials refused, presented again: {trouble}");
            self.presented_again = true;
            return Duration::ZERO;
        }
        if *code == 404 && self.intake.resource == Resource::EndpointSlices {
            if self.health.is_well() {
                tracing::warn!("the cluster serves no EndpointSlices, following Endpoints");
            }
            self.turn_to(Resource::Endpoints);
            return self.backoff.next();
        }
        if *code == 404 && self.intake.resource == Resource::Endpoints {
            self.turn_to(Resource::EndpointSlices);
        }
        self.note(trouble);
        if self.intake.resource == Resource::ServiceCidrs {
            // Older clusters have none, or do not let us see them. They are no reason to hold services back.
            self.mailbox.listed(self.intake.resource.kind());
            if matches!(code, 403 | 404) {
                return self.missing.next();
            }
        }
        self.backoff
            .next()
            .max(retry_after.unwrap_or_default().min(self.timing.backoff_most * 2))
    }

    /// Whether it may help to ask for JSON: the server will not write protobuf, or what it wrote makes no sense.
    fn is_no_protobuf(&self, trouble: &Trouble) -> bool {
        match trouble {
            Trouble::Status { code, .. } => matches!(code, 406 | 415),
            Trouble::Garbage { .. } => self.spoken == Encoding::Protobuf,
            Trouble::Unreachable { .. } | Trouble::Slow { .. } => false,
        }
    }

    fn note(&mut self, trouble: &Trouble) {
        self.health.failing(trouble);
        self.is_unsure |= self.health.sees_outage();
    }

    fn turn_to(&mut self, resource: Resource) {
        self.intake.resource = resource;
        self.position = None;
    }

    /// A cluster that is upgraded, or whose front door said 404 by mistake, has EndpointSlices later on.
    async fn look_for_slices(&mut self) {
        if self.intake.resource != Resource::Endpoints {
            return;
        }
        let probe = Resource::EndpointSlices.list(&List::One);
        if self.get(&probe).await.is_ok() {
            tracing::info!("the cluster serves EndpointSlices now");
            self.turn_to(Resource::EndpointSlices);
        }
    }

    /// Everything that exists is known, as of this version.
    pub(super) fn listed(&mut self, version: String) {
        self.intake.end_list();
        self.position = Some(version);
        self.list = List::Current;
        self.quiet = Quiet::new(&self.timing);
        self.is_unsure = false;
        self.presented_again = false;
        self.missing.reset();
        if self.streaming == Streaming::NotNow {
            self.streaming = Streaming::Wanted;
        }
        if self.fruitless < FRUITLESS_LIMIT {
            self.backoff.reset();
            self.health.well();
        }
    }

    /// A watch has said something, or has stood for a while.
    pub(super) fn watch_works(&mut self) {
        self.fruitless = 0;
        self.presented_again = false;
        self.backoff.reset();
        self.health.well();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::kube::Connection;

    async fn follower(resource: Resource) -> Follower {
        let connection = Connection {
            master: Some("http://127.0.0.1:1".into()),
            ..Connection::default()
        };
        Follower::new(
            connection.connect().unwrap(),
            Arc::new(Mailbox::new(&Kind::ALL)),
            Arc::default(),
            Arc::default(),
            Timing::default(),
            resource,
        )
    }

    fn status(code: u16) -> End {
        End::Trouble(Trouble::Status {
            url: "u".into(),
            code,
            reason: "r".into(),
            retry_after: None,
        })
    }

    fn unreachable() -> End {
        End::Trouble(Trouble::Unreachable {
            url: "u".into(),
            reason: "r".into(),
        })
    }

    fn seconds(range: std::ops::Range<f64>, wait: Duration) {
        assert!(
            range.contains(&wait.as_secs_f64()),
            "{wait:?} is not within {range:?} s"
        );
    }

    #[tokio::test]
    async fn a_server_that_is_back_is_not_kept_waiting() {
        let mut follower = follower(Resource::Services).await;
        follower.position = Some("7".into());
        for _ in 0..8 {
            follower.judge(unreachable()).await;
        }
        seconds(15.0..30.0, follower.judge(unreachable()).await);
        assert!(follower.is_unsure, "it may come back with another history");
        // Its roles are not loaded yet; then they are, but the version has expired meanwhile.
        seconds(0.8..1.6, follower.judge(status(403)).await);
        seconds(1.6..3.2, follower.judge(status(403)).await);
        assert_eq!(follower.position.as_deref(), Some("7"));
        assert_eq!(follower.judge(End::Expired).await, Duration::ZERO);
        assert_eq!(follower.position, None);
        seconds(0.8..8.0, follower.judge(End::Expired).await);
    }

    #[tokio::test]
    async fn refused_credentials_are_presented_again_at_once_and_then_rarely() {
        let mut follower = follower(Resource::Services).await;
        assert_eq!(follower.judge(status(401)).await, Duration::ZERO);
        assert!(follower.health.is_well());
        seconds(0.8..1.6, follower.judge(status(401)).await);
        seconds(1.6..3.2, follower.judge(status(401)).await);
        assert!(!follower.health.is_well());
        follower.listed("7".into());
        assert_eq!(follower.judge(status(401)).await, Duration::ZERO);
    }

    #[tokio::test]
    async fn one_refusal_of_service_cidrs_is_soon_forgotten() {
        for code in [403, 404] {
            let mut follower = follower(Resource::ServiceCidrs).await;
            let mut least = 0.8;
            for _ in 0..9 {
                seconds(least..2.0 * least, follower.judge(status(code)).await);
                least *= 2.0;
            }
            follower.judge(status(code)).await;
            seconds(600.0..1200.0, follower.judge(status(code)).await);
            follower.listed("7".into());
            seconds(0.8..1.6, follower.judge(status(code)).await);
        }
    }

    #[tokio::test]
    async fn lists_in_place_of_watches_are_soon_and_leave_the_server_time() {
        let mut follower = follower(Resource::Services).await;
        let fruitless = || End::Fruitless("cut".into());
        follower.listed("7".into());
        for _ in 0..2 {
            seconds(0.2..0.4, follower.judge(fruitless()).await);
            assert!(follower.position.is_some() && follower.health.is_well());
        }
        assert_eq!(follower.judge(fruitless()).await, Duration::ZERO);
        assert!(follower.position.is_none() && !follower.health.is_well());
        for least in [0.8, 1.6, 2.0, 2.0] {
            follower.listed("8".into());
            seconds(least..2.0 * least, follower.judge(fruitless()).await);
        }
        follower.list_time = Duration::from_millis(500);
        follower.judge(fruitless()).await;
        seconds(8.0..20.0, follower.judge(fruitless()).await);
        follower.watch_works();
        assert!(follower.health.is_well());
        seconds(0.2..0.4, follower.judge(fruitless()).await);
    }
}
