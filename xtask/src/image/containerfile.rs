//! What an image says about itself, read from the last stage of the Containerfile. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// The instructions that end up in an image's configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) entrypoint: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) labels: BTreeMap<String, String>,
}

/// The last stage, with `$NAME` replaced by the arguments given.
pub(super) fn last_stage(text: &str, arguments: &[(&str, &str)]) -> Result<Stage> {
    let mut stage = Stage::default();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (instruction, rest) = line
            .split_once(' ')
            .with_context(|| format!("not an instruction: {line}"))?;
        match instruction {
            "FROM" => stage = Stage::default(),
            "ENTRYPOINT" => stage.entrypoint = serde_json::from_str(rest).context("ENTRYPOINT")?,
            "ENV" => stage.env.push(rest.to_owned()),
            "LABEL" => {
                let (key, value) = rest
                    .split_once('=')
                    .with_context(|| format!("a label without a value: {rest}"))?;
                let value = replaced(value.trim_matches('"'), arguments)?;
                stage.labels.insert(key.to_owned(), value);
            }
            "ARG" | "COPY" | "RUN" | "WORKDIR" => {}
            other => bail!("the Containerfile has an instruction that is not understood: {other}"),
        }
    }
    Ok(stage)
}

fn replaced(value: &str, arguments: &[(&str, &str)]) -> Result<String> {
    let Some(name) = value.strip_prefix('$') else {
        return Ok(value.to_owned());
    };
    let found = arguments.iter().find(|(argument, _)| *argument == name);
    let (_, value) = found.with_context(|| format!("${name} is not known"))?;
    Ok((*value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_stage_counts() {
        let text = "# c\nFROM a AS b\nENV X=1\n\nFROM scratch\nENV PATH=/bin\nENTRYPOINT [\"/x\"]\nLABEL a=\"b c\"\nLABEL v=$V\n";
        let stage = last_stage(text, &[("V", "7")]).unwrap();
        assert_eq!(stage.env, ["PATH=/bin"]);
        assert_eq!(stage.entrypoint, ["/x"]);
        let labels: Vec<_> = stage
            .labels
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(labels, [("a", "b c"), ("v", "7")]);
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let error = |text: &str| last_stage(text, &[]).unwrap_err().to_string();
        assert!(error("FROM x\nUSER me\n").ends_with("USER"));
        assert_eq!(error("FROM x\nLABEL a=$B\n"), "$B is not known");
    }
}
