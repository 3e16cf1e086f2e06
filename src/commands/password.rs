//! Where a password comes from: a file, a pipe, or a terminal that does not show it.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;

use anyhow::{Context as _, ensure};

/// The first line of a file.
pub(super) fn of_file(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the password file {}", path.display()))?;
    let password = text.lines().next().unwrap_or_default();
    ensure!(
        !password.is_empty(),
        "the first line of the password file {} is empty",
        path.display()
    );
    Ok(password.to_owned())
}

/// What is typed on the terminal, which does not show it.
pub(super) fn ask(prompt: &str) -> anyhow::Result<String> {
    ensure!(
        io::stdin().is_terminal(),
        "there is no terminal to ask for the password on: give --password-file FILE, or set BASALT_PASSWORD"
    );
    rpassword::prompt_password(prompt).context("cannot read the password")
}

/// A new password: typed twice on a terminal, or the first line of what is piped in.
pub(super) fn choose() -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        io::stdin()
            .lock()
            .read_line(&mut line)
            .context("cannot read the password from standard input")?;
        let password = line.trim_end_matches(['\r', '\n']);
        ensure!(
            !password.is_empty(),
            "the password on standard input is empty"
        );
        return Ok(password.to_owned());
    }
    let password = ask("New password: ")?;
    ensure!(
        ask("The same again: ")? == password,
        "the two passwords differ: nothing was changed"
    );
    Ok(password)
}
