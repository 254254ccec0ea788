//! The text of a rule, as it stands after `-A <chain>`: where it jumps to, and one form for what is written and what
//! the save programs print for it. Two rules that do the same have the same form, as far as the matches go that are
//! known here.

use std::borrow::Cow;

/// Whether a rule that a save program printed is one that we write. Most are told by their words alone.
pub fn same(saved: &str, written: &str) -> bool {
    same_words(saved, written) || canon(saved) == canon(written)
}

/// The same words in the same order, but for what is always printed differently: the length of a host's prefix, the
/// decimals of a chance, and the protocol before its match. Says no where it does not know.
fn same_words(saved: &str, written: &str) -> bool {
    let (mut found, mut ours) = (saved, written);
    if let (Some(rest), Some(of)) = (found.strip_prefix("-p "), ours.strip_prefix("-m ")) {
        let Some((protocol, name)) = rest.split_once(" -m ").zip(of.split_once(" -p ")) else {
            return false;
        };
        // `-p X -m X ...` and `-m X -p X ...`
        let (first, second) = (next_word(protocol.1), next_word(name.1));
        if !(protocol.0 == name.0 && first.0 == protocol.0 && second.0 == protocol.0) {
            return false;
        }
        (found, ours) = (first.1, second.1);
    }
    // Within quotes nothing means what it looks like.
    let plain = !found.contains('"');
    let mut before = "";
    loop {
        let ((a, rest_a), (b, rest_b)) = (next_word(found), next_word(ours));
        let equal = a == b
            || match before {
                "-s" | "-d" if plain => host(a) == b,
                "--probability" if plain => odds(a).is_some() && odds(a) == odds(b),
                _ => false,
            };
        if !equal || rest_a.is_empty() != rest_b.is_empty() {
            return false;
        }
        if rest_a.is_empty() {
            return true;
        }
        (found, ours, before) = (rest_a, rest_b, b);
    }
}

/// Where a rule jumps to.
pub fn target(rule: &str) -> Option<&str> {
    let at = rule.rfind("-j ").or_else(|| rule.rfind("-g "))?;
    rule[at + 3..].split(' ').next()
}

fn next_word(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// The form. Costs a few allocations: meant for observing, which is rare.
pub fn canon(rule: &str) -> String {
    let tokens = tokens(rule);
    let mut parsed = Parsed::default();
    parsed.read(&tokens);
    parsed.form(rule.len())
}

struct Token<'a> {
    text: Cow<'a, str>,
    quoted: bool,
}

impl Token<'_> {
    /// Not a value, then.
    fn is_option(&self) -> bool {
        !self.quoted && (self.text.starts_with('-') || self.text == "!")
    }
}

fn tokens(rule: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::with_capacity(24);
    let mut rest = rule.trim_start();
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (text, after) = unquote(quoted);
            tokens.push(Token { text, quoted: true });
            rest = after.trim_start();
        } else {
            let end = rest.find(' ').unwrap_or(rest.len());
            tokens.push(Token {
                text: Cow::Borrowed(&rest[..end]),
                quoted: false,
            });
            rest = rest[end..].trim_start();
        }
    }
    tokens
}

/// The text up to the closing quote, and what follows it.
fn unquote(text: &str) -> (Cow<'_, str>, &str) {
    let Some(end) = text.find(['"', '\\']) else {
        return (Cow::Borrowed(text), "");
    };
    if text.as_bytes()[end] == b'"' {
        return (Cow::Borrowed(&text[..end]), &text[end + 1..]);
    }
    let mut owned = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (Cow::Owned(owned), &text[at + 1..]),
            '\\' => owned.extend(chars.next().map(|(_, c)| c)),
            _ => owned.push(c),
        }
    }
    (Cow::Owned(owned), "")
}

#[derive(Default)]
struct Parsed<'a> {
    /// Addresses, protocol, interfaces.
    head: Vec<Part<'a>>,
    /// Names of matches in their order, the target last.
    groups: Vec<(&'static str, &'a str)>,
    /// Their options, each with its group's number.
    options: Vec<(usize, Part<'a>)>,
}

/// An option, whether it is negated, and its value.
type Part<'a> = (&'a str, &'static str, Cow<'a, str>);

impl<'a> Parsed<'a> {
    fn read(&mut self, tokens: &'a [Token<'a>]) {
        let mut at = 0;
        let mut not = "";
        while let Some(token) = tokens.get(at) {
            let after = &tokens[at + 1..];
            let values = after.iter().take_while(|token| !token.is_option()).count();
            let value = after
                .first()
                .filter(|_| values > 0)
                .map_or("", |token| &token.text);
            match &*token.text {
                "!" => {
                    not = "! ";
                    at += 1;
                    continue;
                }
                option @ ("-s" | "-d" | "-p" | "-i" | "-o") => {
                    self.head.push((option, not, host(value).into()))
                }
                "-m" => self.groups.push(("", value)),
                "-j" => self.groups.push(("-j ", value)),
                "-g" => self.groups.push(("-g ", value)),
                option if values == 1 => self.option(option, not, value.into()),
                option => {
                    let values: Vec<&str> = after[..values].iter().map(|token| &*token.text).collect();
                    self.option(option, not, values.join(" ").into());
                }
            }
            not = "";
            at += 1 + values;
        }
    }

    /// Options whose value is the default are left out, values that can be written in two ways are written in one.
    fn option(&mut self, option: &'a str, not: &'static str, value: Cow<'a, str>) {
        let Some(group) = self.groups.len().checked_sub(1) else {
            self.head.push((option, not, value));
            return;
        };
        let part = match (option, &*value) {
            ("--rsource", _) | ("--mask", "255.255.255.255" | "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") => {
                return;
            }
            ("--reject-with", "icmp-port-unreachable" | "icmp6-port-unreachable") => return,
            ("--or-mark", bits) => {
                let bits = number(bits);
                ("--set-xmark", "", format!("{bits}/{bits}").into())
            }
            ("--xor-mark", bits) => ("--set-xmark", "", format!("{}/0x0", number(bits)).into()),
            ("--mark" | "--set-xmark", value) => {
                let (bits, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
                (option, not, format!("{}/{}", number(bits), number(mask)).into())
            }
            ("--probability", chance) => match odds(chance) {
                Some(odds) => (option, not, odds.to_string().into()),
                None => (option, not, value),
            },
            ("--ctstate", states) => {
                let mut states: Vec<&str> = states.split(',').collect();
                states.sort_unstable();
                (option, not, states.join(",").into())
            }
            _ => (option, not, value),
        };
        self.options.push((group, part));
    }

    fn form(mut self, length: usize) -> String {
        self.head.sort_unstable();
        self.options.sort_unstable();
        let mut form = String::with_capacity(length + length / 4);
        for (option, not, value) in &self.head {
            let parts = [if form.is_empty() { "" } else { " " }, option, " ", not, value];
            parts.iter().for_each(|part| form.push_str(part));
        }
        let mut options = self.options.iter().peekable();
        for (number, (kind, name)) in self.groups.iter().enumerate() {
            [" [", kind, name].iter().for_each(|part| form.push_str(part));
            while let Some((_, (option, not, value))) = options.next_if(|(group, _)| *group == number) {
                let parts = [" ", option, " ", not, value];
                parts.iter().for_each(|part| form.push_str(part));
            }
            form.push(']');
        }
        form
    }
}

/// An address without the prefix length that means itself.
fn host(address: &str) -> &str {
    match address.split_once('/') {
        Some((host, "32")) if !host.contains(':') => host,
        Some((host, "128")) => host,
        _ => address,
    }
}

fn number(text: &str) -> String {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    value.map_or_else(|_| text.to_owned(), |value| format!("{value:#x}"))
}

/// The kernel keeps a chance as a fraction of 2^31; the programs print that with more decimals than we write.
fn odds(text: &str) -> Option<u64> {
    let chance = text.parse::<f64>().ok()?;
    Some((chance * 2f64.powi(31)).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::{canon, same, same_words, target};

    /// Ours, and what iptables-save 1.8.9 prints for it.
    const PAIRS: [(&str, &str); 9] = [
        (
            "-m comment --comment \"a/b:c cluster IP\" -m tcp -p tcp -d 10.96.1.1 --dport 80 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ",
            "! -s 10.244.0.0/16 -d 10.96.1.1/32 -p tcp -m comment --comment \"a/b:c cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        ),
        (
            "-m comment --comment a/b:c -m tcp -p tcp -d 127.0.0.0/8 --dport 30080 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-X",
            "-d 127.0.0.0/8 -p tcp -m comment --comment \"a/b:c\" -m tcp --dport 30080 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-X",
        ),
        (
            "-m comment --comment \"a/b -> 10.0.0.1:80\" -m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-X",
            "-m comment --comment \"a/b -> 10.0.0.1:80\" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-X",
        ),
        (
            "-m comment --comment a/b -m recent --name KUBE-SEP-X --set -m tcp -p tcp -j DNAT --to-destination 10.0.0.1:80",
            "-p tcp -m comment --comment \"a/b\" -m recent --set --name KUBE-SEP-X --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.0.0.1:80",
        ),
        (
            "-m mark ! --mark 0x00004000/0x00004000 -j RETURN",
            "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        ),
        ("-j MARK --xor-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x0"),
        (
            "-j MARK --or-mark 0x00004000",
            "-j MARK --set-xmark 0x4000/0x4000",
        ),
        (
            "-m comment --comment \"a/b has no endpoints\" -m udp -p udp -d fd00::1 --dport 53 -j REJECT",
            "-d fd00::1/128 -p udp -m comment --comment \"a/b has no endpoints\" -m udp --dport 53 -j REJECT --reject-with icmp6-port-unreachable",
        ),
        (
            "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
        ),
    ];

    #[test]
    fn what_is_written_and_what_is_saved_have_one_form() {
        for (written, saved) in PAIRS {
            assert_eq!(canon(written), canon(saved));
            assert!(same(saved, written));
        }
    }

    #[test]
    fn rules_are_told_by_their_words_where_that_is_certain() {
        let to = "--to-destination 10.0.0.1:80";
        for (saved, written) in [
            (
                "-s 10.0.0.1/32 -j KUBE-MARK-MASQ",
                "-s 10.0.0.1 -j KUBE-MARK-MASQ",
            ),
            ("-s fd00::1/128 -j KUBE-MARK-MASQ", "-s fd00::1 -j KUBE-MARK-MASQ"),
            (
                &*format!("-p tcp -m tcp -j DNAT {to}"),
                &*format!("-m tcp -p tcp -j DNAT {to}"),
            ),
            (
                "-m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-X",
                "-m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-X",
            ),
            ("-j KUBE-SEP-X", "-j KUBE-SEP-X"),
        ] {
            assert!(same_words(saved, written), "{saved}");
            assert_eq!(canon(saved), canon(written));
        }
        for (saved, written) in [
            ("-s 10.0.0.1/32 -j A", "-s 10.0.0.2 -j A"),
            ("-s 10.0.0.1/24 -j A", "-s 10.0.0.1 -j A"),
            ("-p tcp -m udp -j A", "-m tcp -p tcp -j A"),
            ("-p tcp -m tcp -j A", "-m tcp -p tcp -j B"),
            ("-p tcp -m tcp -j A", "-m udp -p tcp -j A"),
            ("-j A", "-j A -x"),
            ("-j A -x", "-j A"),
            ("", "-j A"),
            (
                r#"-m comment --comment "-s 10.0.0.1/32 x" -j A"#,
                r#"-m comment --comment "-s 10.0.0.1 x" -j A"#,
            ),
            (
                "-m statistic --mode random --probability 0.5 -j A",
                "-m statistic --mode random --probability 0.25 -j A",
            ),
            (
                "-m statistic --mode random --probability x -j A",
                "-m statistic --mode random --probability y -j A",
            ),
        ] {
            assert!(!same(saved, written), "{saved}");
        }
    }

    #[test]
    fn different_rules_have_different_forms() {
        let forms: std::collections::BTreeSet<String> = PAIRS.iter().map(|(rule, _)| canon(rule)).collect();
        assert_eq!(forms.len(), PAIRS.len());
        for (one, other) in [
            ("-s 10.0.0.1 -j A", "! -s 10.0.0.1 -j A"),
            ("-s 10.0.0.0/8 -j A", "-s 10.0.0.0/9 -j A"),
            ("-j A", "-g A"),
            (
                "-m comment --comment \"x y\" -j A",
                "-m comment --comment \"x  y\" -j A",
            ),
            (
                "-m statistic --mode random --probability 0.5000000000 -j A",
                "-m statistic --mode random --probability 0.5000000100 -j A",
            ),
            ("-p tcp -m tcp --dport 80 -j A", "-p tcp -m tcp --sport 80 -j A"),
        ] {
            assert_ne!(canon(one), canon(other));
        }
    }

    #[test]
    fn escapes_in_comments_are_read() {
        assert_eq!(
            canon(r#"-m comment --comment "a \"b\" c" -j A"#),
            r#" [comment --comment a "b" c] [-j A]"#
        );
    }

    #[test]
    fn targets_are_found() {
        assert_eq!(
            target("-m comment --comment \"x\" -j KUBE-SERVICES"),
            Some("KUBE-SERVICES")
        );
        assert_eq!(
            target("-j REJECT --reject-with icmp-port-unreachable"),
            Some("REJECT")
        );
        assert_eq!(target("-m comment --comment \"x\""), None);
    }
}
