//! The commands that the documents tell newcomers to type, typed: each must do what is shown below it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use ferry_lab::netns::Namespace;

use crate::program;

/// A command of a document and the lines of its answer that are shown.
#[derive(Debug)]
struct Typed {
    command: String,
    shown: Vec<String>,
}

/// What stands between the answers of two commands.
const MARK: &str = "--- answered";

/// Types what stands in these documents behind `$`, one after the other in one shell, in a network and a `/run` of its own.
pub fn run(documents: &[&str]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut typed = Vec::new();
    for document in documents {
        let path = root.join(document);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let before = typed.len();
        commands(&text, &mut typed);
        ensure!(typed.len() > before, "{document} shows no command");
    }
    let answers = answers(&root, &typed)?;
    ensure!(
        answers.len() == typed.len(),
        "the shell ended after {:?}:\n{}",
        typed.get(answers.len().saturating_sub(1)),
        answers.join("\n")
    );
    for (typed, answer) in typed.iter().zip(&answers) {
        for line in &typed.shown {
            ensure!(
                answer.lines().any(|answered| answered.trim_end() == line),
                "$ {}\ndoes not answer\n{line}\nbut\n{answer}",
                typed.command
            );
        }
    }
    Ok(())
}

/// Code blocks are indented by four; in them, a line that begins with `$` is typed.
fn commands(document: &str, typed: &mut Vec<Typed>) {
    let mut open = false;
    for line in document.lines() {
        match line.strip_prefix("    ") {
            Some(line) => match line.strip_prefix("$ ") {
                Some(command) => {
                    open = true;
                    typed.push(Typed {
                        command: command.to_owned(),
                        shown: Vec::new(),
                    });
                }
                None if open => typed
                    .last_mut()
                    .into_iter()
                    .for_each(|typed| typed.shown.push(line.trim_end().to_owned())),
                None => {}
            },
            None => open = false,
        }
    }
}

/// What each command answers.
fn answers(root: &Path, typed: &[Typed]) -> Result<Vec<String>> {
    let namespace = Namespace::new("newcomer")?;
    let mut script = String::from("exec 2>&1\nmount -t tmpfs run /run || exit\n");
    for typed in typed {
        script.push_str(&format!("{}\necho '{MARK}'\n", typed.command));
    }
    let beside: PathBuf = program()?.parent().context("no directory")?.to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = namespace
        .command("timeout")
        .args([
            "60",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-c", &script])
        .current_dir(root)
        .env("PATH", format!("{}:{path}", beside.display()))
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut answers: Vec<String> = text.split(&format!("{MARK}\n")).map(str::to_owned).collect();
    // What follows the last mark is nobody's answer.
    answers.pop();
    Ok(answers)
}
