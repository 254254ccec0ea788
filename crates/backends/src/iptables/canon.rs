//! One form for all texts of a rule: what we write, and what the save programs print for it.
//! Pure. Two rules that do the same have the same form, as far as kube-proxy's rules go.

use std::borrow::Cow;
use std::fmt::Write;

/// The form. Costs a few allocations: meant for observing, which is rare.
pub(super) fn canon(rule: &str) -> String {
    let mut parsed = Parsed::default();
    parsed.read(&tokens(rule));
    parsed.form()
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
struct Parsed {
    /// Addresses, protocol, interfaces.
    head: Vec<String>,
    /// Matches in their order, the target last.
    groups: Vec<Group>,
}

struct Group {
    name: String,
    options: Vec<String>,
}

impl Parsed {
    fn read(&mut self, tokens: &[Token<'_>]) {
        let mut at = 0;
        let mut not = "";
        while let Some(token) = tokens.get(at) {
            let values = tokens[at + 1..]
                .iter()
                .take_while(|token| !token.is_option())
                .count();
            let value = tokens
                .get(at + 1)
                .filter(|_| values > 0)
                .map_or("", |token| &token.text);
            match &*token.text {
                "!" => {
                    not = "! ";
                    at += 1;
                    continue;
                }
                option @ ("-s" | "-d" | "-p" | "-i" | "-o") => {
                    self.head.push(format!("{option} {not}{}", host(value)));
                }
                "-m" => self.groups.push(Group {
                    name: value.to_owned(),
                    options: Vec::new(),
                }),
                option @ ("-j" | "-g") => {
                    self.groups.push(Group {
                        name: format!("{option} {value}"),
                        options: Vec::new(),
                    });
                }
                option => {
                    let values: Vec<&str> = tokens[at + 1..][..values]
                        .iter()
                        .map(|token| &*token.text)
                        .collect();
                    self.option(option, not, &values.join(" "));
                }
            }
            not = "";
            at += 1 + values;
        }
    }

    /// Options whose value is the default are left out, values that can be written in two ways are written in one.
    fn option(&mut self, option: &str, not: &str, value: &str) {
        let Some(group) = self.groups.last_mut() else {
            self.head.push(format!("{option} {not}{value}"));
            return;
        };
        let option = match (option, value) {
            ("--rsource", _) | ("--mask", "255.255.255.255" | "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") => {
                return;
            }
            ("--reject-with", "icmp-port-unreachable" | "icmp6-port-unreachable") => return,
            ("--or-mark", bits) => format!("--set-xmark {}/{}", number(bits), number(bits)),
            ("--xor-mark", bits) => format!("--set-xmark {}/0x0", number(bits)),
            ("--mark" | "--set-xmark", _) => {
                let (bits, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
                format!("{option} {not}{}/{}", number(bits), number(mask))
            }
            ("--probability", _) => format!("{option} {not}{}", odds(value)),
            ("--ctstate", _) => {
                let mut states: Vec<&str> = value.split(',').collect();
                states.sort_unstable();
                format!("{option} {not}{}", states.join(","))
            }
            _ => format!("{option} {not}{value}"),
        };
        group.options.push(option);
    }

    fn form(mut self) -> String {
        self.head.sort_unstable();
        let mut form = self.head.join(" ");
        for mut group in self.groups {
            group.options.sort_unstable();
            let _ = write!(form, " [{}", group.name);
            for option in group.options {
                let _ = write!(form, " {option}");
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
fn odds(text: &str) -> String {
    text.parse::<f64>().map_or_else(
        |_| text.to_owned(),
        |chance| format!("{}", (chance * 2f64.powi(31)).round()),
    )
}

#[cfg(test)]
mod tests {
    use super::canon;

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
}
