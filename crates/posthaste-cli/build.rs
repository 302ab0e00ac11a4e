//! Makes man pages and shell completions of the command line. The binary carries them, so that whoever has it has them.

use std::{env, fs, io, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;

#[path = "src/args.rs"]
#[expect(dead_code, reason = "only the shape of it matters here")]
mod args;
#[path = "src/exit.rs"]
#[expect(dead_code, reason = "the help is all that matters here")]
mod exit;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src/args.rs");
    println!("cargo::rerun-if-changed=src/exit.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo names no OUT_DIR"))?;
    let out = Path::new(&out);
    let mut command = without_hidden(&args::CommandLine::command());
    for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "posthaste", out)?;
    }
    write_man_pages(command, out)
}

/// The command without what is not for people, and without a page of help for each of its pages. Nothing can be taken from a command:
/// it is made anew.
fn without_hidden(whole: &clap::Command) -> clap::Command {
    let shown = whole.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let command = clap::Command::new("posthaste")
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(exit::HELP)
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .args(whole.get_arguments().cloned())
        .subcommands(shown.map(|subcommand| subcommand.clone().disable_help_subcommand(true)));
    match whole.get_about() {
        Some(about) => command.about(about.clone()),
        None => command,
    }
}

/// A page for the command and for each of its subcommands, and a list of them for `command/man.rs` to include.
fn write_man_pages(command: clap::Command, out: &Path) -> io::Result<()> {
    let folder = out.join("man");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    clap_mangen::generate_to(command, &folder)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    let list: String = names
        .iter()
        .map(|name| format!("({name:?}, include_str!(concat!(env!(\"OUT_DIR\"), \"/man/{name}\"))),\n"))
        .collect();
    fs::write(out.join("man_pages.rs"), format!("&[\n{list}]"))
}
