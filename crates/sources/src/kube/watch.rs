//! One watch: what exists, if it is asked for, then every change until the watch ends.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use super::api::{Answer, Piece};
use super::follow::{Follower, Quiet};
use super::frame::{EventReader, Text, excerpt};
use super::intake::Origin;
use super::protocol::{Bookmark, End, Line, Phase, Streaming, in_stream_error, refused};
use super::resource::Start;

/// A watch under way.
struct Open {
    answer: Answer,
    since: Instant,
    phase: Phase,
    /// Has said something beside what exists, or has stood for a moment.
    works: bool,
}

impl Follower {
    pub(super) async fn watch(&mut self, start: Start) -> Result<(), End> {
        let seconds = rand::rng().random_range(self.timing.watch.clone());
        let uri = self.intake.resource.watch(&start, seconds);
        let phase = match start {
            Start::Everything => Phase::Listing,
            Start::After(_) => Phase::Following,
        };
        let since = Instant::now();
        let answer = self.get(&uri).await;
        let answer = answer.map_err(|trouble| refused(trouble, phase))?;
        if phase == Phase::Listing {
            self.intake.begin_list();
        }
        let mut open = Open {
            answer,
            since,
            phase,
            works: false,
        };
        let mut reader = EventReader::new(open.answer.encoding);
        loop {
            let allowed = self.allowed_silence(&open);
            let data = match open.answer.piece(allowed).await {
                Ok(Piece::Data(data)) => data,
                Ok(Piece::Silence) => {
                    self.judge_silence(&mut open).await?;
                    continue;
                }
                Ok(Piece::End) => return Err(self.ended(&open, "without a reason")),
                Err(trouble) => return Err(self.ended(&open, &trouble.to_string())),
            };
            let mut input = &data[..];
            while let Some(text) = reader
                .next(&mut input)
                .map_err(|error| open.answer.garbage(error))?
            {
                self.event(text, &mut open)?;
            }
        }
    }

    fn allowed_silence(&self, open: &Open) -> Duration {
        match open.phase {
            Phase::Listing => self.timing.answer,
            Phase::Following if !open.works => self.timing.settle,
            Phase::Following => {
                let next = self.quiet.check_at.min(self.quiet.list_at);
                next.saturating_duration_since(Instant::now())
            }
        }
    }

    async fn judge_silence(&mut self, open: &mut Open) -> Result<(), End> {
        match open.phase {
            // A server that ignores the wish for initial events never says that they have ended.
            Phase::Listing => Err(End::NoStreaming(Streaming::Never)),
            Phase::Following if !open.works => {
                open.works = true;
                self.watch_works();
                Ok(())
            }
            Phase::Following if Instant::now() >= self.quiet.list_at => {
                Err(End::Doubted("the watch has been silent for too long"))
            }
            Phase::Following => {
                let list_at = self.quiet.list_at;
                self.quiet = Quiet {
                    list_at,
                    ..Quiet::new(&self.timing)
                };
                self.check_history().await
            }
        }
    }

    /// What it means that a watch is over.
    fn ended(&self, open: &Open, reason: &str) -> End {
        match open.phase {
            // Whether it is worse, a plain list will show.
            Phase::Listing => End::NoStreaming(Streaming::NotNow),
            Phase::Following if open.works || open.since.elapsed() >= self.timing.settle => End::Closed,
            Phase::Following => End::Fruitless(reason.to_owned()),
        }
    }

    fn event(&mut self, text: Text<'_>, open: &mut Open) -> Result<(), End> {
        let garbage = |error| {
            open.answer
                .garbage(format!("{error}, in \"{}\"", excerpt(text.bytes)))
        };
        let Line { kind, object } = Line::read(text).map_err(garbage)?;
        let version = match &*kind {
            "ADDED" | "MODIFIED" => {
                let origin = match open.phase {
                    Phase::Listing => Origin::List,
                    Phase::Following => Origin::Watch,
                };
                let (version, news) = self.intake.read(object, origin);
                news.into_iter().for_each(|news| self.intake.tell(news));
                version
            }
            "DELETED" => self.intake.absent(object),
            "BOOKMARK" => {
                let Bookmark {
                    resource_version,
                    ends_list,
                } = Bookmark::read(object).map_err(garbage)?;
                if open.phase == Phase::Listing && ends_list && !resource_version.is_empty() {
                    self.list_time = open.since.elapsed();
                    self.listed(resource_version);
                    open.phase = Phase::Following;
                    return Ok(());
                }
                resource_version
            }
            "ERROR" => return Err(refused(in_stream_error(object, &open.answer), open.phase)),
            other => {
                let kind = excerpt(other.as_bytes());
                tracing::debug!(
                    resource = self.intake.resource.name(),
                    kind,
                    "unknown watch event"
                );
                return Ok(());
            }
        };
        // While the list is streamed, only its end makes a version that one can go on from.
        if open.phase == Phase::Following && !version.is_empty() {
            self.position = Some(version);
            self.quiet = Quiet::new(&self.timing);
            open.works = true;
            self.watch_works();
        }
        Ok(())
    }
}
