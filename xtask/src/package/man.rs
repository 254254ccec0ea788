//! Manual pages out of the program's own help, which is made from the tables that read the command line. Pure text.

use std::fmt::Write as _;

/// A command of the program and what it is for, as the help lists them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed<'a> {
    pub(super) name: &'a str,
    pub(super) summary: &'a str,
}

/// The commands that a help text lists.
pub(super) fn commands(help: &str) -> Vec<Listed<'_>> {
    let (_, after) = help.split_once("\nCommands:\n").unwrap_or_default();
    let lines = after.lines().take_while(|line| !line.is_empty());
    let pairs = lines.filter_map(|line| line.trim().split_once(' '));
    pairs
        .map(|(name, summary)| Listed {
            name,
            summary: summary.trim(),
        })
        .collect()
}

/// What a page is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Title<'a> {
    pub(super) name: &'a str,
    pub(super) section: u8,
    pub(super) summary: &'a str,
    pub(super) version: &'a str,
}

/// The manual page of a help text.
pub(super) fn page(title: Title<'_>, help: &str) -> String {
    let Title {
        name,
        section,
        summary,
        version,
    } = title;
    let mut page = format!(
        ".TH {} {section} \"\" \"Ferry {version}\" \"Ferry\"\n.SH NAME\n{} \\- {}\n.SH DESCRIPTION\n",
        name.to_uppercase().replace('-', "\\-"),
        escape(name),
        escape(summary)
    );
    let mut plain = Plain::default();
    for line in help.lines() {
        if let Some(heading) = heading(line) {
            plain.close(&mut page);
            let _ = writeln!(page, ".SH \"{}\"", escape(&heading.to_uppercase()));
        } else if let Some((star, flag, text)) = flag(line) {
            plain.close(&mut page);
            let _ = writeln!(page, ".TP\n\\fB{}\\fR{star}", escape(flag));
            if !text.is_empty() {
                let _ = writeln!(page, "{}", escape(text));
            }
        } else if is_continued(line) && !plain.open {
            let _ = writeln!(page, "{}", escape(line.trim()));
        } else {
            plain.add(&mut page, line);
        }
    }
    plain.close(&mut page);
    page
}

/// Text that keeps its lines; empty ones at its ends are left out.
#[derive(Default)]
struct Plain {
    open: bool,
    empty: usize,
}

impl Plain {
    fn add(&mut self, page: &mut String, line: &str) {
        if line.is_empty() {
            self.empty += 1;
            return;
        }
        if !self.open {
            page.push_str(".nf\n");
        } else if self.empty > 0 {
            page.push('\n');
        }
        (self.open, self.empty) = (true, 0);
        let _ = writeln!(page, "{}", escape(line));
    }

    fn close(&mut self, page: &mut String) {
        if self.open {
            page.push_str(".fi\n");
        }
        *self = Plain::default();
    }
}

fn heading(line: &str) -> Option<&str> {
    let begins = line.starts_with(|c: char| c.is_ascii_alphanumeric());
    line.strip_suffix(':').filter(|_| begins)
}

/// `*     --name value   what it does`: the star says that the flag counts beside a configuration file too.
fn flag(line: &str) -> Option<(&str, &str, &str)> {
    let (star, rest) = line.strip_prefix('*').map_or(("", line), |rest| (" *", rest));
    let flag = rest.trim_start();
    if !flag.starts_with('-') || rest.len() == flag.len() {
        return None;
    }
    let (flag, text) = flag.split_once("  ").unwrap_or((flag, ""));
    Some((star, flag, text.trim()))
}

/// The text of a flag goes on in its column.
fn is_continued(line: &str) -> bool {
    line.starts_with(&" ".repeat(30))
}

fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) {
        format!("\\&{escaped}")
    } else {
        escaped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "Does things.\n\nUsage:\n  ferry [flags]\n\nCommands:\n  plan    print it\n  help    show this\n\n\
        What to do:\n*     --config path                   Read it. Most\n                                      of it.\n\
        * -h, --help                          Show this text.\n";

    #[test]
    fn commands_are_those_of_the_help() {
        let listed: Vec<_> = commands(HELP).iter().map(|c| (c.name, c.summary)).collect();
        assert_eq!(listed, [("plan", "print it"), ("help", "show this")]);
    }

    #[test]
    fn a_page_has_a_paragraph_for_each_flag() {
        let title = Title {
            name: "ferry",
            section: 8,
            summary: "a proxy",
            version: "1",
        };
        assert_eq!(
            page(title, HELP),
            ".TH FERRY 8 \"\" \"Ferry 1\" \"Ferry\"\n.SH NAME\nferry \\- a proxy\n.SH DESCRIPTION\n.nf\nDoes things.\n.fi\n\
             .SH \"USAGE\"\n.nf\n  ferry [flags]\n.fi\n.SH \"COMMANDS\"\n.nf\n  plan    print it\n  help    show this\n.fi\n\
             .SH \"WHAT TO DO\"\n.TP\n\\fB\\-\\-config path\\fR *\nRead it. Most\nof it.\n.TP\n\\fB\\-h, \\-\\-help\\fR *\nShow this text.\n"
        );
    }

    #[test]
    fn nothing_is_taken_for_a_request() {
        assert_eq!(escape(".so x"), "\\&.so x");
        assert_eq!(escape("a\\b"), "a\\eb");
    }
}
