//! What MySQL and MariaDB have in common.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::home::Place;
use crate::failure::{Context, Result};

/// A user for the tests, who may do everything from anywhere. Run at each start; the server is on loopback only.
const TEST_USER: &str = "\
CREATE USER IF NOT EXISTS 'posthaste'@'%';
GRANT ALL ON *.* TO 'posthaste'@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS posthaste;
";

/// More settings for servers of both kinds, separated by spaces, which come after ours.
const SETTINGS_VARIABLE: &str = "POSTHASTE_MYSQL_SETTINGS";

/// What both log when they take connections.
pub const READY_LINE: &str = "ready for connections";

/// Removes what a server that was killed has left of its socket. Its process is gone; but by now another one may have its number,
/// which is all that a server looks at before it refuses to start.
fn forget_socket(place: &Place) {
    for name in ["server.sock", "server.sock.lock"] {
        // Mostly it is not there.
        std::fs::remove_file(place.data().join(name)).ok();
    }
}

/// Settings that both know, of a server that is about to start.
pub fn settings(place: &Place, port: u16) -> Vec<OsString> {
    forget_socket(place);
    let mut settings = data_settings(place);
    settings.push(path_setting("--init-file=", &place.start_file()));
    // In the data folder: as a whole path it may be too long for a socket.
    settings.push("--socket=server.sock".into());
    settings.push(path_setting("--pid-file=", &place.theirs.join("pid")));
    settings.push(format!("--port={port}").into());
    settings
        .extend(["--bind-address=127.0.0.1", "--max-connections=400", "--skip-name-resolve"].map(Into::into));
    // Tests ask which session is in a transaction, which nothing else tells at once; the rest of it costs too much.
    settings.extend(
        [
            "--performance-schema=ON",
            "--performance-schema-instrument=wait/%=OFF",
            "--performance-schema-instrument=stage/%=OFF",
            "--performance-schema-instrument=statement/%=OFF",
            "--performance-schema-instrument=memory/%=OFF",
            "--performance-schema-instrument=transaction=ON",
            "--performance-schema-consumer-events-transactions-current=ON",
        ]
        .map(Into::into),
    );
    let more = std::env::var(SETTINGS_VARIABLE).unwrap_or_default();
    settings.extend(more.split_whitespace().map(Into::into));
    settings
}

/// Settings for making the data folder, which the server must be given too.
pub fn data_settings(place: &Place) -> Vec<OsString> {
    let mut settings =
        vec![path_setting("--datadir=", &place.data()), path_setting("--tmpdir=", &place.theirs)];
    settings.extend(
        [
            "--innodb-buffer-pool-size=128M",
            // The tests kill processes and servers, not the operating system: its cache is as good as the disk.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
            "--innodb-doublewrite=0",
            "--innodb-use-native-aio=0",
            "--skip-log-bin",
        ]
        .map(Into::into),
    );
    settings
}

pub fn path_setting(name: &str, path: &Path) -> OsString {
    let mut setting = OsString::from(name);
    setting.push(path);
    setting
}

pub fn write_start_file(place: &Place) -> Result<()> {
    let path = place.start_file();
    std::fs::write(&path, TEST_USER).or_cannot(|| format!("write {}", path.display()))
}

pub fn url(port: u16) -> String {
    format!("mysql://posthaste@127.0.0.1:{port}/posthaste?ssl-mode=disabled")
}

/// A program in the search path, or where servers are kept that not everybody should run.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
