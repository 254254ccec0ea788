//! `--vmodule`: verbosity by source file.

/// A pattern of file names, with `*`, `?` and `[...]`, and the verbosity of the files it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    glob: String,
    verbosity: u32,
}

impl Pattern {
    pub fn new(glob: &str, verbosity: u32) -> Self {
        Self {
            glob: glob.to_owned(),
            verbosity,
        }
    }

    /// The verbosity of a source file, if this pattern is about it. A pattern names the file without
    /// directory and extension; a `mod.rs` goes by its directory's name as well.
    pub(super) fn verbosity_of(&self, path: &str) -> Option<u32> {
        let mut parts = path.rsplit('/');
        let file = parts.next().unwrap_or(path);
        let stem = file.strip_suffix(".rs").unwrap_or(file);
        let room = if stem == "mod" { parts.next() } else { None };
        let fits = |name: &str| matches(self.glob.as_bytes(), name.as_bytes());
        (fits(stem) || room.is_some_and(fits)).then_some(self.verbosity)
    }
}

fn matches(glob: &[u8], name: &[u8]) -> bool {
    let Some((&first, rest)) = glob.split_first() else {
        return name.is_empty();
    };
    match first {
        b'*' => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        b'?' => !name.is_empty() && matches(rest, &name[1..]),
        b'[' => match class(rest) {
            Some((class, rest)) => name
                .split_first()
                .is_some_and(|(&c, name)| in_class(class, c) && matches(rest, name)),
            None => false,
        },
        b'\\' if !rest.is_empty() => name.first() == Some(&rest[0]) && matches(&rest[1..], &name[1..]),
        literal => name.first() == Some(&literal) && matches(rest, &name[1..]),
    }
}

/// What stands between the brackets, and what follows them.
fn class(glob: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = glob.iter().position(|&b| b == b']').filter(|&end| end > 0)?;
    Some((&glob[..end], &glob[end + 1..]))
}

fn in_class(class: &[u8], c: u8) -> bool {
    let (negated, class) = match class.strip_prefix(b"^") {
        Some(class) => (true, class),
        None => (false, class),
    };
    let mut rest = class;
    let mut found = false;
    while let Some((&low, after)) = rest.split_first() {
        if let [b'-', high, after @ ..] = after {
            found |= (low..=*high).contains(&c);
            rest = after;
        } else {
            found |= low == c;
            rest = after;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (glob, name, fits) in [
            ("render", "render", true),
            ("render", "renders", false),
            ("ren*", "render", true),
            ("*", "", true),
            ("*der", "render", true),
            ("re?der", "render", true),
            ("r[a-f]nder", "render", true),
            ("r[^a-f]nder", "render", false),
            ("r[xe]nder", "render", true),
            ("r[", "r[", false),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("", "", true),
        ] {
            assert_eq!(matches(glob.as_bytes(), name.as_bytes()), fits, "{glob} {name}");
        }
    }

    #[test]
    fn files_go_by_their_stem_and_rooms_by_their_directory() {
        let pattern = |glob| Pattern::new(glob, 5);
        assert_eq!(
            pattern("render").verbosity_of("crates/backends/src/nftables/render.rs"),
            Some(5)
        );
        assert_eq!(
            pattern("nftables").verbosity_of("crates/backends/src/nftables/mod.rs"),
            Some(5)
        );
        assert_eq!(
            pattern("nftables").verbosity_of("crates/backends/src/nftables/render.rs"),
            None
        );
    }
}
