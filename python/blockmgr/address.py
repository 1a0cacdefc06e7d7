"""Where the daemon is."""
import contextlib
import os
import stat
import tempfile

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _look(path):
    """The path's own status, not through a symbolic link; None: nothing there."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def _is_ours(folder):
    """Whether only this user, and root, can have put anything into it."""
    found = _look(folder)
    return (found is not None and stat.S_ISDIR(found.st_mode) and
            found.st_uid == os.geteuid() and
            not found.st_mode & _OTHERS_MAY_WRITE)


def _check_socket(path, owner):
    found = _look(path)
    if found is not None and not (stat.S_ISSOCK(found.st_mode) and
                                  found.st_uid in (owner, 0)):
        raise PermissionError(
            f"{path}: expected a socket of user {owner} or of root")
    return f"unix:{path}"


def default_daemon_address(runtime=None, service="/run/blockmgr",
                           temporary=None):
    """The address that a client should connect to, when nobody names one.

    The rule is that of scheduler/server/default_address.h, which says why. The
    arguments are for tests. PermissionError: the folder or the socket may
    belong to somebody else, to whom a client would tell its prompts.
    """
    if runtime is None:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    user = os.geteuid()
    made = os.path.join(temporary or tempfile.gettempdir(), f"blockmgr-{user}")
    own = (runtime if runtime.startswith("/") and _is_ours(runtime) else
           service if _is_ours(service) else made)
    own_socket = os.path.join(own, "blockmgr.sock")
    service_socket = os.path.join(service, "blockmgr.sock")
    owner = _look(service)
    if (_look(service_socket) is None or owner is None or
            (_is_ours(own) and _look(own_socket) is not None)):
        if own == made:  # before anybody else makes it
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, 0o700)
        if not _is_ours(own):
            raise PermissionError(
                f"{own}: expected a folder of user {user} that nobody else may "
                "write to; set XDG_RUNTIME_DIR to one")
        return _check_socket(own_socket, user)
    # Root alone can have made this folder, and says by its owner whose it is.
    if not stat.S_ISDIR(owner.st_mode) or owner.st_mode & _OTHERS_MAY_WRITE:
        raise PermissionError(
            f"{service}: expected a folder that its user alone may write to")
    return _check_socket(service_socket, owner.st_uid)
