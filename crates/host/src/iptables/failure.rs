//! What a refused restore means: from the program's words to the input line that was to blame.

use std::fmt;

/// A refused restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The program that refused.
    pub program: String,
    /// Its exit status, or the signal that ended it.
    pub status: String,
    /// Number of the input line that was to blame, counted from 1. A `COMMIT` line means that the kernel refused
    /// the table as a whole, and the legacy program cannot say why.
    pub line: Option<usize>,
    /// That line.
    pub input: Option<String>,
    /// What the program said, without its name, version and usage hints.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.program, self.status)?;
        match (&self.line, &self.input) {
            (Some(line), Some(input)) => write!(f, "line {line} `{input}`: {}", self.message),
            (Some(line), None) => write!(f, "line {line}: {}", self.message),
            (None, _) => f.write_str(&self.message),
        }
    }
}

impl Failure {
    /// Reads the program's words. Three forms exist: `line N failed` (legacy, and nft for what its own bookkeeping
    /// finds), `line N: RULE_APPEND failed (reason): ...` (nft, the kernel's answer to one command), and
    /// `Error occurred at line: N` (both, for input that cannot be parsed).
    pub(super) fn parse(program: &str, status: String, stderr: &str, input: &str) -> Failure {
        let said = line_number(stderr);
        let line = said.map(|line| blamed(line, stderr, input));
        Failure {
            program: program.to_owned(),
            status,
            line,
            input: line
                .and_then(|line| input.lines().nth(line - 1))
                .map(str::to_owned),
            message: message(stderr),
        }
    }
}

fn line_number(stderr: &str) -> Option<usize> {
    stderr.lines().find_map(|text| {
        let after = text.split_once("line: ").or_else(|| text.split_once("line "))?.1;
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let rest = &after[digits..];
        let number = after[..digits].parse().ok().filter(|number| *number > 0)?;
        (rest.trim().is_empty() || rest.contains("failed") || rest.contains("invalid")).then_some(number)
    })
}

/// nft notices a jump to a chain that is not there only at `COMMIT`, but names the chain: blame the line that jumps.
fn blamed(line: usize, stderr: &str, input: &str) -> usize {
    let at = |number: usize| input.lines().nth(number - 1).unwrap_or_default();
    let Some(chain) = stderr
        .split_once("Chain '")
        .and_then(|(_, rest)| rest.split_once("' does not exist"))
        .map(|(chain, _)| chain)
    else {
        return line;
    };
    if at(line) != "COMMIT" {
        return line;
    }
    (1..line)
        .rev()
        .take_while(|number| !at(*number).starts_with('*'))
        .filter(|number| {
            at(*number)
                .split(' ')
                .skip_while(|word| *word != "-j" && *word != "-g")
                .nth(1)
                == Some(chain)
        })
        .last()
        .unwrap_or(line)
}

fn message(stderr: &str) -> String {
    let mut parts = Vec::new();
    for text in stderr.lines().map(str::trim) {
        let text = match text.split_once("): ") {
            Some((head, rest)) if head.contains(" v") && !head.contains(": ") => rest,
            _ => text,
        };
        let hint = text.starts_with("Try `") || text.starts_with("Error occurred at line");
        let bare = text.ends_with("(nf_tables):") || text.ends_with("(legacy):");
        if !text.is_empty() && !hint && !bare {
            parts.push(text);
        }
    }
    if parts.is_empty() {
        return "no reason given".to_owned();
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: &str = "*filter\n:AA - [0:0]\n-A AA -j NOSUCH\nCOMMIT\n*nat\n-X BB\nCOMMIT\n";

    fn parse(stderr: &str) -> Failure {
        Failure::parse("iptables-restore", "exit status: 1".into(), stderr, INPUT)
    }

    #[test]
    fn legacy_names_a_line() {
        let failure = parse("iptables-restore: line 3 failed\n");
        assert_eq!(failure.line, Some(3));
        assert_eq!(failure.input.as_deref(), Some("-A AA -j NOSUCH"));
        assert_eq!(failure.message, "iptables-restore: line 3 failed");
    }

    #[test]
    fn legacy_refused_as_a_whole_is_the_commit_line() {
        assert_eq!(
            parse("iptables-restore: line 4 failed\n").input.as_deref(),
            Some("COMMIT")
        );
    }

    #[test]
    fn nft_names_the_command_and_the_kernels_reason() {
        let failure = parse(
            "iptables-restore v1.8.9 (nf_tables): \nline 6: CHAIN_DEL failed (Device or resource busy): chain BB\n",
        );
        assert_eq!((failure.line, failure.input.as_deref()), (Some(6), Some("-X BB")));
        assert_eq!(
            failure.message,
            "line 6: CHAIN_DEL failed (Device or resource busy): chain BB"
        );
    }

    #[test]
    fn nft_bookkeeping_gives_line_and_reason() {
        let failure = parse(
            "iptables-nft-restore: line 3 failed: Bad rule (does a matching rule exist in that chain?).\n",
        );
        assert_eq!(failure.line, Some(3));
        assert!(failure.message.contains("does a matching rule exist"));
    }

    #[test]
    fn unparsable_input_gives_line_and_reason() {
        let failure = parse(
            "iptables-restore v1.8.9 (legacy): unknown option \"--bogus\"\nError occurred at line: 3\n\
             Try `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
        );
        assert_eq!(failure.line, Some(3));
        assert_eq!(failure.message, "unknown option \"--bogus\"");
    }

    #[test]
    fn a_missing_chain_is_blamed_on_the_jump() {
        let failure = parse(
            "iptables-nft-restore v1.8.9 (nf_tables): Chain 'NOSUCH' does not exist\nError occurred at line: 4\n",
        );
        assert_eq!(
            (failure.line, failure.input.as_deref()),
            (Some(3), Some("-A AA -j NOSUCH"))
        );
    }

    #[test]
    fn a_bad_table_name_is_a_line_too() {
        let failure = parse(
            "iptables-nft-restore v1.8.9 (nf_tables): iptables-nft-restore: line 1 table name 'x' invalid\n\
             Error occurred at line: 1\n",
        );
        assert_eq!(failure.line, Some(1));
    }

    #[test]
    fn silence_and_other_words_have_no_line() {
        assert_eq!(parse("").message, "no reason given");
        assert_eq!(parse("cannot open xtables lock line\n").line, None);
    }
}
