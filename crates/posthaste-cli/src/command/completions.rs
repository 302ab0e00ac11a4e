//! `posthaste completions`: what the build has made for the shells.

use crate::{Context, args::Shell, exit, failure::Outcome};

macro_rules! made_by_the_build {
    ($name:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/", $name))
    };
}

pub fn run(shell: Shell, context: &Context) -> Outcome {
    let text = match shell {
        Shell::Bash => made_by_the_build!("posthaste.bash"),
        Shell::Elvish => made_by_the_build!("posthaste.elv"),
        Shell::Fish => made_by_the_build!("posthaste.fish"),
        Shell::Pwsh => made_by_the_build!("_posthaste.ps1"),
        Shell::Zsh => made_by_the_build!("_posthaste"),
    };
    context.out.line(text.trim_end())?;
    Ok(exit::DONE)
}
