//! `posthaste man`: the pages that the build has made.

use std::{fs, path::Path};

use crate::{
    Context, exit,
    failure::{Failure, Outcome},
};

/// The name of each page, and the page.
const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/man_pages.rs"));

pub fn run(to: Option<&Path>, context: &Context) -> Outcome {
    let Some(folder) = to else {
        let main = PAGES.iter().find(|(name, _)| *name == "posthaste.1").map_or("", |(_, page)| page);
        context.out.line(main.trim_end())?;
        return Ok(exit::DONE);
    };
    let cannot =
        |error: std::io::Error| Failure::Usage(format!("cannot write to {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(cannot)?;
    for (name, page) in PAGES {
        fs::write(folder.join(name), page).map_err(cannot)?;
    }
    context.out.note(format_args!("{} pages are in {}", PAGES.len(), folder.display()));
    Ok(exit::DONE)
}
