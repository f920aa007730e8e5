#include "runtime/platform/file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "manyhead/output_file.h"

namespace manyhead {
namespace {

const char* KindOf(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "of another kind";
}

Status CheckRegular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return Status();
  return FileError(path, std::string("is ") + KindOf(mode) + "; expected a regular file");
}

Status CheckName(const std::string& path) {
  const std::size_t nul = path.find('\0');
  if (nul == std::string::npos) return Status();
  return FileError(path.substr(0, nul), "the file name contains a NUL byte");
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// Returns the file that `path` names, or would name: symbolic links are followed, also one whose
/// target does not exist yet.
Result<std::string> FollowLinks(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // the kernel's limit
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    const fs::path next = fs::read_symlink(target, error);
    if (error) return target.string();  // no link, or no such file
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return FileError(path,
                   "leads through more than " + std::to_string(kMostLinks) + " symbolic links");
}

/// Checks that a file can have the name `path`, and that an existing file can be replaced under
/// `target`; `mode` gets the mode of that file, 0 where there is none.
Status CheckReplaceable(const std::string& path, const std::string& target, mode_t& mode) {
  struct stat info = {}, behind = {};
  mode = 0;
  if (stat(path.c_str(), &info) != 0)
    return errno == ENOENT ? Status() : SystemError(path, "cannot create");
  if (Status status = CheckRegular(path, info.st_mode); !status.ok()) return status;
  // A link in /proc/self/fd may lead to a file that has lost its name.
  if (stat(target.c_str(), &behind) != 0 || info.st_dev != behind.st_dev ||
      info.st_ino != behind.st_ino)
    return FileError(path, "leads to a file that has no name; expected one that can be replaced");
  mode = info.st_mode;
  return Status();
}

/// Returns the temporary name of the file beside `path`; it is not longer than a long `path`.
std::string TemporaryName(const std::string& path, const std::string& suffix) {
  constexpr std::size_t kMostBytes = 100;
  const std::filesystem::path whole = path;
  const std::string stem = whole.filename().string().substr(0, kMostBytes);
  return (whole.parent_path() / (stem + suffix)).string();
}

/// Blocks SIGXFSZ in this thread, and consumes the one that a write beyond the limit raises.
class BlockFileSizeSignal {
 public:
  BlockFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &old_);
  }
  BlockFileSizeSignal(const BlockFileSizeSignal&) = delete;
  BlockFileSizeSignal& operator=(const BlockFileSizeSignal&) = delete;
  ~BlockFileSizeSignal() {
    const int error = errno;
    const timespec at_once = {};
    // A signal that was blocked before belongs to the caller.
    if (sigismember(&old_, SIGXFSZ) == 0)
      while (sigtimedwait(&signal_, nullptr, &at_once) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
    errno = error;
  }

 private:
  sigset_t signal_ = {}, old_ = {};
};

/// Returns the suffix of a file's name while the file is incomplete.
Result<std::string> RandomSuffix(const std::string& path) {
  std::uint32_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
    return SystemError(path, "cannot draw a random number");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string suffix = ".";
  for (int shift = 28; shift >= 0; shift -= 4) suffix += kDigits[bits >> shift & 15];
  return suffix;
}

/// Returns the name by which an open file without a name can be linked.
std::string LinkOf(const Descriptor& file) { return "/proc/self/fd/" + std::to_string(file.get()); }

/// Opens a file without a name, which disappears with its process; returns no descriptor where the
/// file system does not support that or /proc is missing.
Descriptor OpenNameless(const std::string& folder) {
  Descriptor file(open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  if (file.get() >= 0 && access(LinkOf(file).c_str(), F_OK) != 0) return Descriptor();
  return file;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Status FileError(const std::string& path, const std::string& what) {
  return {StatusCode::kIoError, path + ": " + what};
}

Status SystemError(const std::string& path, const char* action) {
  // strerror is not used because it is not thread-safe.
  return FileError(path, std::string(action) + ": " + std::generic_category().message(errno));
}

Result<InputFile> InputFile::Open(const std::string& path) {
  if (Status status = CheckName(path); !status.ok()) return status;
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return SystemError(path, "cannot open");
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return SystemError(path, "cannot read the size");
  if (Status status = CheckRegular(path, info.st_mode); !status.ok()) return status;
  return InputFile(path, std::move(file), std::int64_t{info.st_size});
}

Status InputFile::ReadAt(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(file_.get(), bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path_, "cannot read");
    if (got == 0)
      return FileError(path_, "ends after " + std::to_string(offset) + " of " +
                                  std::to_string(size_bytes_) + " bytes");
    offset += got;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Status();
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  if (Status status = CheckName(path); !status.ok()) return status;
  Result<std::string> target = FollowLinks(path);
  if (!target.ok()) return target.status();
  mode_t mode = 0;
  if (Status status = CheckReplaceable(path, *target, mode); !status.ok()) return status;
  Result<std::string> suffix = RandomSuffix(path);
  if (!suffix.ok()) return suffix.status();
  // After it is created, nothing may throw.
  std::string temporary = TemporaryName(*target, *suffix);
  bool named = false;
  Descriptor file = OpenNameless(FolderOf(*target));
  if (file.get() < 0) {
    file = Descriptor(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0) return SystemError(path, "cannot create");
    named = true;
  }
  // Users who could read the old file can read the new one. Where fchmod fails, the umask applies.
  if (mode != 0) (void)!fchmod(file.get(), mode & 0777);
  return AtomicFile(*std::move(target), std::move(temporary), std::move(file), named);
}

AtomicFile::~AtomicFile() {
  if (named_) unlink(temporary_.c_str());
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const BlockFileSizeSignal block;
    const ssize_t put = write(file_.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_, "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return Status();
}

Status AtomicFile::Commit() {
  if (fsync(file_.get()) != 0) return SystemError(path_, "cannot write to the disk");
  if (Status status = CommitUnsynced(); !status.ok()) return status;
  return SyncFolder();
}

/// The name is an entry of its folder, which must be written to the disk as well.
Status AtomicFile::SyncFolder() const {
  const std::string folder = FolderOf(path_);
  const Descriptor directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) {
    // A folder that may be written but not read is written to the disk with its whole file system.
    if (errno == EACCES && syncfs(file_.get()) == 0) return Status();
    return SystemError(folder, "cannot open");
  }
  // Some file systems do not support this, and need it for nothing.
  if (fsync(directory.get()) != 0 && errno != EINVAL)
    return SystemError(folder, "cannot write to the disk");
  return Status();
}

Status AtomicFile::CommitUnsynced() {
  // A link cannot replace an existing file; renaming can.
  if (!named_ &&
      linkat(AT_FDCWD, LinkOf(file_).c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return SystemError(path_, "cannot name");
  named_ = true;
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    return SystemError(path_, "cannot rename");
  named_ = false;
  return Status();
}

Status CheckOutputFile(const std::string& path) { return AtomicFile::Create(path).status(); }

Status WriteOutputFile(const std::string& path, std::string_view bytes) {
  return WriteOutputFile(path, [&](const OutputSink& sink) { return sink(bytes); });
}

Status WriteOutputFile(const std::string& path,
                       const std::function<Status(const OutputSink&)>& write) {
  Result<AtomicFile> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  const OutputSink sink = [&](std::string_view bytes) {
    return file->Write(std::as_bytes(std::span(bytes)));
  };
  if (Status status = write(sink); !status.ok()) return status;
  return file->Commit();
}

}  // namespace manyhead
