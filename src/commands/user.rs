//! `basalt user`: the file of users, which a server reads by `server.users_file`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::ensure;
use arrow::array::{ArrayRef, StringArray};
use basalt_auth::{UserName, Users};
use clap::{Args, Subcommand};

use super::password;
use crate::output::{Format, print_listing, say};

/// `basalt user ...`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
A server that is told of the file serves its users alone, and reads it again when it changes. The file holds no password, but enough to
try guesses on: keep it to yourself.

Examples:
  basalt user add users.txt alice                      asks for the password
  basalt user add users.txt etl < /run/secrets/etl     takes it from a pipe
  basalt user list users.txt
  basalt serve --set server.users_file=users.txt
  basalt topic list --user alice")]
pub(crate) enum UserCommand {
    /// Add a user, or give one another password; makes the file if it is missing.
    Add(UserArgs),
    /// Take a user out; connections that are open stay.
    Remove(UserArgs),
    /// List the users.
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    /// File of users.
    file: PathBuf,
    /// Name: of A-Z, a-z, 0-9, '.', '_', '@' and '-'.
    #[arg(value_parser = UserName::new)]
    name: UserName,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// File of users.
    file: PathBuf,
    /// How the listing is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Blocks: it asks, and works through a password.
pub(crate) fn run(command: UserCommand) -> anyhow::Result<()> {
    match command {
        UserCommand::Add(UserArgs { file, name }) => {
            let password = password::choose()?;
            let is_new = Users::change(&file, |users| {
                anyhow::Ok(users.set(name.clone(), &password)?)
            })?;
            say(&match is_new {
                true => format!("added {name}\n"),
                false => format!("{name} has another password\n"),
            })
        }
        UserCommand::Remove(UserArgs { file, name }) => {
            Users::change(&file, |users| {
                ensure!(users.remove(&name), "{} has no user {name}", file.display());
                Ok(())
            })?;
            say(&format!("removed {name}\n"))
        }
        UserCommand::List(ListArgs { file, format }) => {
            let users = Users::read(&file)?;
            let (names, mechanisms): (Vec<_>, Vec<_>) = users
                .iter()
                .map(|(name, mechanisms)| (name.as_str(), mechanisms.join(", ")))
                .unzip();
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("user", Arc::new(StringArray::from(names))),
                ("mechanisms", Arc::new(StringArray::from(mechanisms))),
            ];
            print_listing(format, columns)
        }
    }
}
