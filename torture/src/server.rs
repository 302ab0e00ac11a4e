//! The server of a run, which is nobody else's: started, crashed and started again by `xtask`, which knows how.

use std::{
    ffi::OsString,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// A server in a folder of its own; it is stopped when this is dropped.
pub struct Server {
    xtask: OsString,
    pub folder: PathBuf,
    /// The file that its clock is read from.
    clock: PathBuf,
    pub url: String,
}

impl Server {
    pub fn start(database: &str, folder: &Path, clock: &Path) -> Result<Self> {
        let xtask = std::env::var_os("POSTHASTE_XTASK")
            .context("run `cargo xtask torture`, which starts this program")?;
        let folder = folder.join("server");
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // The server is run as another user, who must get there.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        let mut server = Self { xtask, folder, clock: clock.to_owned(), url: String::new() };
        let printed = server.xtask(&["up", "--db", database])?;
        server.url = printed.split('\'').nth(1).context("xtask names no URL")?.to_owned();
        Ok(server)
    }

    /// Ends it as a crash would, and starts it again with its data.
    pub async fn crash(&self) -> Result<()> {
        let mut command = tokio::process::Command::from(self.command(&["restart"]));
        let output = command.output().await.context("cannot run xtask")?;
        if !output.status.success() {
            bail!("the server did not start again: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.xtask);
        command.arg("servers").args(arguments).env("TMPDIR", &self.folder);
        command.env("POSTHASTE_SERVER_CLOCK", &self.clock);
        for database in ["POSTGRES", "MARIADB", "MYSQL"] {
            command.env_remove(format!("POSTHASTE_TEST_{database}_URL"));
        }
        command
    }

    fn xtask(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).output().context("cannot run xtask")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.command(&["down"]).output().ok();
    }
}
