//! The tar format, as much of it as a bundle needs: plain files with short names. Pure.

const BLOCK: usize = 512;
/// Where the fields of a header are.
const NAME: std::ops::Range<usize> = 0..100;
const MODE: std::ops::Range<usize> = 100..108;
const SIZE: std::ops::Range<usize> = 124..136;
const TIME: std::ops::Range<usize> = 136..148;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;
const MAGIC: std::ops::Range<usize> = 257..265;

/// Why a file is no archive of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TarError {
    #[error("it is no tar archive: the header at byte {0} does not fit its checksum")]
    Checksum(usize),
    #[error("it is cut off: the file at byte {0} is longer than what is left")]
    Truncated(usize),
}

/// One file, ready to be put behind others.
pub(super) fn file(name: &str, content: &[u8], seconds: u64) -> Vec<u8> {
    let mut header = [0u8; BLOCK];
    let name = &name.as_bytes()[..name.len().min(NAME.len() - 1)];
    header[..name.len()].copy_from_slice(name);
    let mut octal = |field: std::ops::Range<usize>, value: u64| {
        let width = field.len() - 1;
        let text = format!("{value:0width$o}");
        header[field.start..field.start + width].copy_from_slice(&text.as_bytes()[text.len() - width..]);
    };
    octal(MODE, 0o600);
    octal(SIZE, content.len() as u64);
    octal(TIME, seconds);
    header[KIND] = b'0';
    header[MAGIC].copy_from_slice(b"ustar\x0000");
    let sum = format!("{:06o}\0 ", checksum(&header));
    header[CHECKSUM].copy_from_slice(sum.as_bytes());
    let mut all = header.to_vec();
    all.extend_from_slice(content);
    all.resize(all.len().next_multiple_of(BLOCK), 0);
    all
}

/// What comes behind the last file.
pub(super) fn end() -> [u8; 2 * BLOCK] {
    [0; 2 * BLOCK]
}

/// The content of the file of this name, if it is there.
pub(super) fn find<'a>(archive: &'a [u8], wanted: &str) -> Result<Option<&'a [u8]>, TarError> {
    let mut at = 0;
    while let Some(header) = archive.get(at..at + BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let told = number(&header[CHECKSUM]).ok_or(TarError::Checksum(at))?;
        if told != u64::from(checksum(header)) {
            return Err(TarError::Checksum(at));
        }
        let size = number(&header[SIZE]).ok_or(TarError::Checksum(at))?;
        let size = usize::try_from(size).map_err(|_| TarError::Truncated(at))?;
        let start = at + BLOCK;
        let content = start.checked_add(size).and_then(|end| archive.get(start..end));
        let content = content.ok_or(TarError::Truncated(at))?;
        let name = header[NAME].split(|byte| *byte == 0).next().unwrap_or_default();
        if name == wanted.as_bytes() {
            return Ok(Some(content));
        }
        at = start + size.next_multiple_of(BLOCK);
    }
    if at == 0 {
        return Err(TarError::Checksum(0));
    }
    Ok(None)
}

/// The sum of all bytes, those of the sum itself taken as blanks.
fn checksum(header: &[u8]) -> u32 {
    let byte = |(at, byte): (usize, &u8)| {
        if CHECKSUM.contains(&at) {
            u32::from(b' ')
        } else {
            u32::from(*byte)
        }
    };
    header.iter().enumerate().map(byte).sum()
}

fn number(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_matches(|c: char| c == ' ' || c == '\0');
    u64::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found_and_anything_else_is_refused() {
        let mut archive = file("b/one.txt", b"one", 1_794_739_671);
        archive.extend(file("b/two.txt", &[7; 1000], 0));
        archive.extend(end());
        assert_eq!(archive.len() % BLOCK, 0);
        assert_eq!(find(&archive, "b/one.txt"), Ok(Some(&b"one"[..])));
        assert_eq!(find(&archive, "b/two.txt"), Ok(Some(&[7; 1000][..])));
        assert_eq!(find(&archive, "b/three.txt"), Ok(None));
        assert_eq!(find(b"", "x"), Err(TarError::Checksum(0)));
        assert_eq!(find(&[b'x'; 2000], "x"), Err(TarError::Checksum(0)));
        assert_eq!(
            find(&archive[..1024 + 600], "b/two.txt"),
            Err(TarError::Truncated(1024))
        );
        let mut broken = archive.clone();
        broken[3] ^= 1;
        assert_eq!(find(&broken, "b/two.txt"), Err(TarError::Checksum(0)));
    }
}
