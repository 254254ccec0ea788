//! Which names a mistyped one may stand for.

/// More would not help.
const MOST: usize = 3;

/// The names that are a slip or two away, or that have the word as one of their parts; the nearest first.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let piece = |name: &str| !word.is_empty() && format!("-{name}-").contains(&format!("-{word}-"));
    let mut near: Vec<(usize, &str)> = names
        .map(|name| (distance(word, name), name))
        .filter(|(slips, name)| *slips <= (word.len().min(name.len()) + 1) / 4 || piece(name))
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(MOST).collect()
}

/// What to add to a message about an unknown name.
pub fn did_you_mean(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [others @ .., last] => format!("; did you mean {} or {last}?", others.join(", ")),
    }
}

/// How many letters have to be added, removed, exchanged or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut above: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i];
        for j in 1..=b.len() {
            let exchanged = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = exchanged.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(above[j - 2] + 1);
            }
            next.push(least);
        }
        above = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_slips() {
        for (a, b, slips) in [
            ("", "", 0),
            ("", "abc", 3),
            ("mode", "mode", 0),
            ("mdoe", "mode", 1),
            ("mod", "mode", 1),
            ("nodes", "mode", 2),
            ("status", "plan", 5),
        ] {
            assert_eq!(distance(a, b), slips, "{a} {b}");
            assert_eq!(distance(b, a), slips, "{b} {a}");
        }
    }

    #[test]
    fn a_slip_or_a_piece_is_near_and_nothing_else() {
        let names = [
            "proxy-mode",
            "iptables-sync-period",
            "ipvs-sync-period",
            "v",
            "config",
        ];
        let near = |word| nearest(word, names.into_iter());
        assert_eq!(near("proxy-mod"), ["proxy-mode"]);
        assert_eq!(near("poxy-mdoe"), ["proxy-mode"]);
        assert_eq!(near("sync-period"), ["ipvs-sync-period", "iptables-sync-period"]);
        assert!(near("nosuch").is_empty() && near("x").is_empty() && near("").is_empty());
    }

    #[test]
    fn hints_are_sentences() {
        let hint = |names: &[&str]| did_you_mean(names.iter().map(|&name| name.to_owned()));
        assert_eq!(hint(&[]), "");
        assert_eq!(hint(&["a"]), "; did you mean a?");
        assert_eq!(hint(&["a", "b", "c"]), "; did you mean a, b or c?");
    }
}
