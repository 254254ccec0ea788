//! Time as the servers speak it. Pure: everything that compares times takes them as arguments.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    let since = since_epoch(time);
    let mut text = date_and_time(since.as_secs());
    if since.subsec_nanos() > 0 {
        let decimals = format!("{:09}", since.subsec_nanos());
        text.push('.');
        text.push_str(decimals.trim_end_matches('0'));
    }
    text.push('Z');
    text
}

/// RFC 3339 in UTC with exactly six decimals, as Kubernetes writes a MicroTime.
pub fn rfc3339_micros(time: SystemTime) -> String {
    let since = since_epoch(time);
    format!("{}.{:06}Z", date_and_time(since.as_secs()), since.subsec_micros())
}

/// The form of date(1), e.g. `Sun Nov 15 10:47:51 UTC 2026`.
pub fn unix_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let seconds = since_epoch(time).as_secs();
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let of_day = seconds % 86_400;
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} UTC {year}",
        DAYS[(days % 7) as usize],
        MONTHS[(month - 1) as usize % 12],
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

pub(crate) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn date_and_time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// The Gregorian date of a day counted from 1970-01-01. Years are taken to begin in March, so that the leap day is
/// the last of its year; 400 such years always have 146,097 days.
pub fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
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
}
