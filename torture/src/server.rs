//! The server of a run, which is nobody else's: started, crashed and started again by `xtask`, which knows how.

use std::{
    ffi::OsString,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::clock::now;

/// How often to try to stop it.
const MOST_TRIES: u32 = 100;

/// A server in a folder of its own; it is stopped when this is dropped.
pub struct Server {
    xtask: OsString,
    pub folder: PathBuf,
    /// The file that its clock is read from.
    clock: PathBuf,
    /// Another one after it was replaced.
    url: Mutex<String>,
}

impl Server {
    pub fn start(database: &str, folder: &Path, clock: &Path) -> Result<Self> {
        let xtask = std::env::var_os("POSTHASTE_XTASK")
            .context("run `cargo xtask torture`, which starts this program")?;
        let folder = folder.join("server");
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // The server is run as another user, who must get there.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        let server = Self { xtask, folder, clock: clock.to_owned(), url: Mutex::default() };
        let printed = server.xtask(&["up", "--db", database])?;
        server.note_url(&printed)?;
        Ok(server)
    }

    pub fn url(&self) -> String {
        self.url.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A private server is on loopback, and its URL has a port.
    pub fn address(&self) -> Result<SocketAddr> {
        let url = self.url();
        let authority =
            url.split("://").nth(1).and_then(|rest| rest.split('/').next()).context("not a URL")?;
        let host = authority.rsplit('@').next().unwrap_or(authority);
        host.parse().with_context(|| format!("{host} is no address"))
    }

    fn note_url(&self, printed: &str) -> Result<()> {
        let url = printed.split('\'').nth(1).context("xtask names no URL")?;
        url.clone_into(&mut self.url.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Ends it as a crash would, and starts it again with its data.
    pub async fn crash(&self) -> Result<()> {
        self.xtask_meanwhile(&["restart"]).await.context("the server did not start again")?;
        Ok(())
    }

    /// Stops it, and leaves its files.
    pub async fn stop(&self) -> Result<()> {
        self.xtask_meanwhile(&["down", "--keep"]).await.context("the server did not stop")?;
        Ok(())
    }

    /// Gives it a standby that has all that is committed, ends it for good, and puts the standby in its place. Returns when it was ended.
    pub async fn replace(&self, both_for_ms: u64) -> Result<u64> {
        let command = self.command(&["promote", "--both-for", &both_for_ms.to_string()]);
        let mut promoting = tokio::process::Command::from(command);
        let mut promoting = promoting.stdout(Stdio::piped()).spawn().context("cannot run xtask")?;
        let mut lines = BufReader::new(promoting.stdout.take().context("nobody listens to xtask")?).lines();
        // The first line comes when there is a standby, and the second when it has taken over.
        lines.next_line().await?.context("the server got no standby")?;
        let ended = now();
        let printed = lines.next_line().await?.context("the standby did not take over")?;
        self.note_url(&printed)?;
        if !promoting.wait().await?.success() {
            bail!("the standby took over, and something was left to do");
        }
        Ok(ended)
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
        printed(self.command(arguments).output().context("cannot run xtask")?)
    }

    async fn xtask_meanwhile(&self, arguments: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::from(self.command(arguments));
        printed(command.output().await.context("cannot run xtask")?)
    }
}

fn printed(output: Output) -> Result<String> {
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be in the middle of starting again: then that comes first.
        for _ in 0..MOST_TRIES {
            if self.xtask(&["down"]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
