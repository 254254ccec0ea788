//! Time as the servers and the log speak it. Pure: everything that compares times takes them as arguments.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// One reading of both clocks: the steady one to measure with, the calendar one to show.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For differences; never jumps.
    pub steady: Instant,
    /// For people and metrics.
    pub calendar: SystemTime,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        Self {
            steady: Instant::now(),
            calendar: SystemTime::now(),
        }
    }
}

/// Seconds since the epoch, with fraction.
pub fn unix_seconds(time: SystemTime) -> f64 {
    since_epoch(time).as_secs_f64()
}

/// RFC 3339 in UTC with as many decimals as needed and none that are zero, e.g. `2026-11-15T10:47:51.09Z`.
pub fn rfc3339(time: SystemTime) -> String {
    timestamp(time).to_string()
}

/// RFC 3339 in UTC with exactly six decimals, as Kubernetes writes a MicroTime.
pub fn rfc3339_micros(time: SystemTime) -> String {
    format!("{:.6}", timestamp(time))
}

/// The form of date(1), e.g. `Sun Nov 15 10:47:51 UTC 2026`.
pub fn unix_date(time: &Zoned) -> String {
    time.strftime("%a %b %e %H:%M:%S %Z %Y").to_string()
}

/// The time here: in the zone that `TZ` names, else that of `/etc/localtime`, else in UTC.
pub fn local(time: SystemTime) -> Zoned {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    let zone = ZONE.get_or_init(|| TimeZone::try_system().unwrap_or(TimeZone::UTC));
    timestamp(time).to_zoned(zone.clone())
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The epoch itself for times that no clock shows.
fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_trims_zeros() {
        let at = |seconds, nanos| rfc3339(UNIX_EPOCH + Duration::new(seconds, nanos));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_794_739_671, 94_935_038), "2026-11-15T10:47:51.094935038Z");
        assert_eq!(at(951_782_400, 500_000_000), "2000-02-29T00:00:00.5Z");
        assert_eq!(at(4_107_542_399, 0), "2100-02-28T23:59:59Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn micro_time_has_six_decimals() {
        assert_eq!(
            rfc3339_micros(UNIX_EPOCH + Duration::new(1_794_739_671, 94_000_000)),
            "2026-11-15T10:47:51.094000Z"
        );
    }

    #[test]
    fn dates_are_told_as_date_tells_them_and_in_their_zone() {
        let time = UNIX_EPOCH + Duration::from_secs(1_794_739_671);
        let in_zone = |zone| unix_date(&timestamp(time).to_zoned(zone));
        assert_eq!(in_zone(TimeZone::UTC), "Sun Nov 15 10:47:51 UTC 2026");
        let tokyo = TimeZone::posix("JST-9").unwrap();
        assert_eq!(in_zone(tokyo), "Sun Nov 15 19:47:51 JST 2026");
    }
}
