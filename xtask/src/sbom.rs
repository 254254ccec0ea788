//! What the artefacts are made of, as SPDX 2.3: the crates that are linked into the program, and Debian's packages.
//!
//! Always holds: the same sources and packages give the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::image::sha256;
use crate::{program, shell};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

/// Of the program alone.
pub(crate) fn of_program() -> Result<Vec<u8>> {
    document("ferry", &crates()?)
}

/// Of the image: the program, and the packages that dpkg's status file lists.
pub(crate) fn of_image(dpkg_status: &str) -> Result<Vec<u8>> {
    let mut parts = crates()?;
    parts.extend(dpkg_status.split("\n\n").filter_map(debian_package));
    document("ferry-image", &parts)
}

/// The crates that are linked into the program on this platform; what only builds or tests need is none of them.
fn crates() -> Result<Vec<Value>> {
    let platform = shell::host_triple()?;
    let args = ["metadata", "--format-version=1", "--locked", "--filter-platform"];
    let out = shell::output(shell::cargo().args(args).arg(&platform))?;
    let metadata: Metadata = serde_json::from_slice(&out).context("cannot read cargo's metadata")?;
    let lock = fs::read_to_string(shell::root().join("Cargo.lock"))?;
    let sums = checksums(&lock);
    let linked = linked(&metadata).context("cargo knows no ferry-app")?;
    let mut packages: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| linked.contains(package.id.as_str()))
        .collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    Ok(packages
        .into_iter()
        .map(|package| crate_package(package, &sums))
        .collect())
}

fn linked(metadata: &Metadata) -> Option<BTreeSet<&str>> {
    let nodes: BTreeMap<&str, &Node> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node))
        .collect();
    let first = metadata.packages.iter().find(|p| p.name == "ferry-app")?;
    let mut open = vec![first.id.as_str()];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let deps = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            let linked = deps.filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            open.extend(linked.map(|dep| dep.pkg.as_str()));
        }
    }
    Some(seen)
}

/// `name version` to the checksum in Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<String, &str> {
    let blocks = lock.split("[[package]]");
    let field = |block: &'_ str, key: &str| -> Option<(usize, usize)> {
        let at = block.find(&format!("\n{key} = \""))? + key.len() + 5;
        Some((at, at + block[at..].find('"')?))
    };
    blocks
        .filter_map(|block| {
            let get = |key| field(block, key).map(|(from, to)| &block[from..to]);
            Some((format!("{} {}", get("name")?, get("version")?), get("checksum")?))
        })
        .collect()
}

fn crate_package(package: &Package, sums: &BTreeMap<String, &str>) -> Value {
    let Package {
        name,
        version,
        license,
        source,
        ..
    } = package;
    let licence = license.as_ref().map(|text| text.replace('/', " OR "));
    let licence = licence.unwrap_or_else(|| "NOASSERTION".to_owned());
    let from = match source {
        Some(_) => format!("https://crates.io/api/v1/crates/{name}/{version}/download"),
        None => "git+https://github.com/ferry-proxy/ferry".to_owned(),
    };
    let mut entry = json!({
        "SPDXID": format!("SPDXRef-cargo-{}", plain(&format!("{name}-{version}"))),
        "name": name,
        "versionInfo": version,
        "downloadLocation": from,
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [purl(&format!("pkg:cargo/{name}@{}", encoded(version)))],
    });
    if let Some(sum) = sums.get(&format!("{name} {version}")) {
        entry["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sum}]);
    }
    entry
}

/// A paragraph of dpkg's status file.
fn debian_package(paragraph: &str) -> Option<Value> {
    let field = |key: &str| {
        let mut lines = paragraph.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
    };
    let (name, version, architecture) = (field("Package")?, field("Version")?, field("Architecture")?);
    let locator = format!("pkg:deb/debian/{name}@{}?arch={architecture}", encoded(version));
    Some(json!({
        "SPDXID": format!("SPDXRef-deb-{}", plain(name)),
        "name": name,
        "versionInfo": version,
        "supplier": "Organization: Debian",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [purl(&locator)],
    }))
}

fn document(name: &str, parts: &[Value]) -> Result<Vec<u8>> {
    let whole = format!("SPDXRef-{name}");
    let mut packages = vec![json!({
        "SPDXID": whole,
        "name": name,
        "versionInfo": VERSION,
        "downloadLocation": "git+https://github.com/ferry-proxy/ferry",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    })];
    packages.extend_from_slice(parts);
    let mut relationships = vec![relationship("SPDXRef-DOCUMENT", "DESCRIBES", &whole)];
    for part in parts {
        let id = part["SPDXID"].as_str().unwrap_or_default();
        relationships.push(relationship(&whole, "CONTAINS", id));
    }
    let digest = sha256(&serde_json::to_vec(&packages)?);
    let mut text = serde_json::to_vec_pretty(&json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{name}-{VERSION}"),
        "documentNamespace": format!("https://github.com/ferry-proxy/ferry/sbom/{name}-{VERSION}-{digest}"),
        "creationInfo": {"created": program::written_date()?, "creators": ["Tool: ferry-xtask"]},
        "packages": packages,
        "relationships": relationships,
    }))?;
    text.push(b'\n');
    Ok(text)
}

fn relationship(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

fn purl(locator: &str) -> Value {
    json!({"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator})
}

/// Identifiers have letters, digits, dots and dashes.
fn plain(text: &str) -> String {
    text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-")
}

/// What a version may have that a purl may not.
fn encoded(version: &str) -> String {
    version.replace('+', "%2B").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0\"\nsource = \"x\"\nchecksum = \"abc\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1\"\n";
        let sums = checksums(lock);
        assert_eq!(
            sums.into_iter().collect::<Vec<_>>(),
            [("a 1.0".to_owned(), "abc")]
        );
    }

    #[test]
    fn a_package_of_debian_has_its_version_encoded() {
        let paragraph = "Package: libssl3\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:3.0+x~1\nDescription: y\n Version: 9";
        let package = debian_package(paragraph).unwrap();
        let locator = &package["externalRefs"][0]["referenceLocator"];
        assert_eq!(locator, "pkg:deb/debian/libssl3@1%3A3.0%2Bx~1?arch=amd64");
    }

    #[test]
    fn the_program_is_made_of_what_is_linked_into_it() {
        let parts = crates().unwrap();
        let named = |name: &str| parts.iter().filter(|part| part["name"] == name).count();
        assert_eq!((named("ferry-model"), named("rustls")), (1, 1));
        // for tests only
        assert_eq!((named("proptest"), named("ferry-lab")), (0, 0));
        let unknown = parts
            .iter()
            .filter(|part| part["licenseDeclared"] == "NOASSERTION");
        assert_eq!(unknown.count(), 0);
    }
}
