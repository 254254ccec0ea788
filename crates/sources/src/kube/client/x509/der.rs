//! Reading DER, one element after the other.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;

/// A context-specific tag; `constructed` ones hold further elements.
pub(super) const fn context(number: u8) -> u8 {
    0x80 | number
}

pub(super) const fn constructed(number: u8) -> u8 {
    0xa0 | number
}

/// One element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element, whatever it is.
    pub(super) fn any(&mut self) -> Option<Element<'a>> {
        let [tag, first, ..] = *self.0 else {
            return None;
        };
        // Tags above 30 take several bytes; nothing that is read here has one.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (length, head) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81..=0x84 => {
                let bytes = self.0.get(2..2 + usize::from(first & 0x7f))?;
                let length = bytes
                    .iter()
                    .fold(0, |length, byte| length << 8 | usize::from(*byte));
                // Only the shortest form is DER.
                if bytes[0] == 0 || length < 0x80 {
                    return None;
                }
                (length, 2 + bytes.len())
            }
            _ => return None,
        };
        let whole = self.0.get(..head.checked_add(length)?)?;
        self.0 = &self.0[whole.len()..];
        Some(Element {
            tag,
            content: &whole[head..],
            whole,
        })
    }

    /// The next element if it has this tag; otherwise nothing is read.
    pub(super) fn optional(&mut self, tag: u8) -> Option<Element<'a>> {
        let mut ahead = *self;
        let element = ahead.any().filter(|element| element.tag == tag)?;
        *self = ahead;
        Some(element)
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.optional(tag).map(|element| element.content)
    }

    pub(super) fn sequence(&mut self) -> Option<Reader<'a>> {
        self.take(SEQUENCE).map(Reader)
    }
}

/// The bytes of a bit string that is made of whole bytes, as keys and signatures are.
pub(super) fn whole_bytes(bits: &[u8]) -> Option<&[u8]> {
    match bits {
        [0, bytes @ ..] => Some(bytes),
        _ => None,
    }
}

/// A small number that is not negative.
pub(super) fn small(integer: &[u8]) -> Option<u64> {
    match integer {
        [] => None,
        [first, ..] if first & 0x80 != 0 || integer.len() > 8 => None,
        _ => Some(
            integer
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        ),
    }
}

/// Seconds since 1970 of a UTCTime or GeneralizedTime in the forms that certificates may use.
pub(super) fn time(element: Element<'_>) -> Option<i64> {
    let digits = element.content.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let pair = |at: usize| {
        let two = digits.get(at..at + 2)?;
        Some(i64::from(two[0] - b'0') * 10 + i64::from(two[1] - b'0'))
    };
    let (year, rest) = match (element.tag, digits.len()) {
        // Two digits mean 1950 to 2049.
        (UTC_TIME, 12) => (pair(0).map(|y| if y < 50 { 2000 + y } else { 1900 + y })?, 2),
        (GENERALIZED_TIME, 14) => (pair(0)? * 100 + pair(2)?, 4),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| pair(rest + at));
    let (month, day) = (month?, day?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour?) * 60 + minute?) * 60 + second?)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here, so that leap days end them.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_one_by_one() {
        let mut reader = Reader::new(&[0x30, 3, 0x02, 1, 5, 0x04, 0x81, 0x80]);
        let mut inner = reader.sequence().unwrap();
        assert_eq!(inner.take(INTEGER).and_then(small), Some(5));
        assert!(inner.is_empty());
        assert!(reader.any().is_none(), "it claims more than there is");
        for bad in [
            &[0x30u8][..],
            &[0x30, 0x80],
            &[0x1f, 1, 1],
            &[0x04, 0x81, 1, 0],
            &[0x04, 0x82, 0, 1, 0],
        ] {
            assert!(Reader::new(bad).any().is_none(), "{bad:?}");
        }
    }

    #[test]
    fn times_are_seconds_since_1970() {
        let read = |tag, text: &str| {
            time(Element {
                tag,
                content: text.as_bytes(),
                whole: &[],
            })
        };
        assert_eq!(read(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(read(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(read(UTC_TIME, "500101000000Z"), Some(-631_152_000));
        assert_eq!(read(GENERALIZED_TIME, "20240229120000Z"), Some(1_709_208_000));
        assert_eq!(read(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
        for bad in [
            "20240229120000",
            "2024022912000Z",
            "20241329120000Z",
            "2024022912000xZ",
        ] {
            assert_eq!(read(GENERALIZED_TIME, bad), None, "{bad}");
        }
    }
}
