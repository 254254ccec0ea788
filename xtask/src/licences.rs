//! Licences of everything that is linked into what we ship or test with.
//!
//! A dependency passes if its SPDX expression can be satisfied by licences of [`ALLOWED`] alone.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell;

/// Licences that ask for no more than attribution.
const ALLOWED: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "NCSA",
    "Unicode-3.0",
    "Zlib",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

pub(crate) fn check() -> Result<()> {
    let platform = shell::host_triple()?;
    let args = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        &platform,
    ];
    let out = shell::output(shell::cargo().args(args))?;
    let metadata: Metadata = serde_json::from_slice(&out).context("cannot read cargo's metadata")?;
    let bad: Vec<String> = metadata.packages.iter().filter_map(objection).collect();
    if !bad.is_empty() {
        bail!(
            "dependencies with licences that are not allowed:\n  {}",
            bad.join("\n  ")
        );
    }
    println!("licences: {} packages, all allowed", metadata.packages.len());
    Ok(())
}

fn objection(package: &Package) -> Option<String> {
    let Package {
        name,
        version,
        license,
    } = package;
    match license {
        None => Some(format!("{name} {version}: names no licence")),
        Some(expression) if !allowed(expression) => Some(format!("{name} {version}: {expression}")),
        Some(_) => None,
    }
}

/// Can this SPDX expression be met by allowed licences? `/` is an old way to write OR.
fn allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest).is_some_and(|ok| ok && rest.is_empty())
}

fn any_of(words: &mut &[&str]) -> Option<bool> {
    let mut ok = all_of(words)?;
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        ok |= all_of(words)?;
    }
    Some(ok)
}

fn all_of(words: &mut &[&str]) -> Option<bool> {
    let mut ok = one(words)?;
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        ok &= one(words)?;
    }
    Some(ok)
}

fn one(words: &mut &[&str]) -> Option<bool> {
    let (&first, rest) = words.split_first()?;
    *words = rest;
    if first == "(" {
        let ok = any_of(words)?;
        let (&close, rest) = words.split_first()?;
        *words = rest;
        return (close == ")").then_some(ok);
    }
    if let [with @ "WITH", exception, rest @ ..] = *words {
        *words = rest;
        return Some(ALLOWED.contains(&format!("{first} {with} {exception}").as_str()));
    }
    Some(ALLOWED.contains(&first))
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "NCSA",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-or-later OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in [
            "GPL-3.0-or-later",
            "MIT AND LGPL-3.0",
            "(MIT OR Apache-2.0) AND MPL-2.0",
            "Apache-2.0 WITH Classpath-exception-2.0",
            "",
            "MIT OR",
            "(MIT",
            "MIT Apache-2.0",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
