#include "tests/layout/source_rules.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tessera::layout {
namespace {

constexpr size_t kMaxFunctionLines = 80;
constexpr int kMaxFilesAtTheTop = 12;
constexpr int kMaxTestPrograms = 70;

// Dialect words in 1,000 words.
constexpr double kMostDialect = 1.0;
constexpr std::string_view kInstalledHeaders = "client/sdk/include/";

struct Dialect {
  std::set<std::string_view> words;
  std::vector<std::vector<std::string_view>> phrases;
};

const Dialect& FormerDialect() {
  static const auto* dialect = new Dialect{
      .words = {"tell", "tells", "telling", "told", "behind", "beside", "besides", "whoever", "nobody", "anew",
                "somebody", "linger", "lingers", "lingering", "mend", "mends", "patience", "legal", "mended"},
      .phrases = {{"of", "its", "own"}, {"of", "their", "own"}, {"of", "no", "use"}, {"of", "no", "more", "use"}}};
  return *dialect;
}

// Names in prose that are no code of this project.
bool IsForeign(const std::string& name) {
  static const auto* names = new std::set<std::string_view>{
      // Methods, models, people, networks and programs.
      "BeautifulSoup", "CogVideoX", "ConsisID", "DeepSpeed", "HunyuanVideo", "LeVeque", "LyCORIS", "OneTrainer",
      "OpenMP", "PipeDream", "PipeFusion", "RoCE", "SiLU", "SwiGLU", "TensorBoard", "TensorFlow", "UniPC", "ZeRO",
      // Types of LibTorch, PyTorch and TensorBoard.
      "CachingHostAllocatorImpl", "SessionLog", "TorchDispatchMode",
      // Files of a user or of another project, and a placeholder.
      "base/train/train.yaml", "deploy/docker/keys.txt", "examples/flux_example.py", "DescribeX"};
  return names->contains(name);
}

bool IsDocument(std::string_view file) {
  return file.ends_with(".md") && (file.starts_with("docs/") || file == "README.md" || file == "CONTRIBUTING.md");
}

// A line of C++, divided into its code and its // comment.
struct CppLine {
  std::string code;
  std::string comment;
};

// Block comments count as code. `raw_end` closes the raw string that the line begins in; it is empty outside of one.
CppLine SplitCppLine(const std::string& line, std::string& raw_end) {
  for (size_t i = 0; i < line.size(); ++i) {
    if (!raw_end.empty()) {
      const size_t end = line.find(raw_end, i);
      if (end == std::string::npos) return {.code = line, .comment = ""};
      i = end + raw_end.size() - 1;
      raw_end.clear();
    } else if (line[i] == '"' && i > 0 && line[i - 1] == 'R') {
      const size_t opening = line.find('(', i);
      if (opening == std::string::npos) continue;
      raw_end = absl::StrCat(")", line.substr(i + 1, opening - i - 1), "\"");
      i = opening;
    } else if (line[i] == '"' || (line[i] == '\'' && (i == 0 || !absl::ascii_isalnum(line[i - 1])))) {
      const char quote = line[i];
      for (++i; i < line.size() && line[i] != quote; ++i) i += line[i] == '\\';
    } else if (line.compare(i, 2, "//") == 0 && (i == 0 || line[i - 1] == ' ')) {
      return {.code = line.substr(0, i), .comment = line.substr(i + 2)};
    }
  }
  return {.code = line, .comment = ""};
}

std::vector<CppLine> SplitCpp(const std::vector<std::string>& lines) {
  std::vector<CppLine> split;
  std::string raw_end;
  for (const std::string& line : lines) split.push_back(SplitCppLine(line, raw_end));
  return split;
}

bool IsScript(std::string_view file) {
  return file.ends_with(".py") || file.ends_with(".sh") || file.ends_with(".js") || file.ends_with(".css");
}

bool IsProductCpp(std::string_view file) { return IsCpp(file) && !IsTest(std::string(file)); }

// Returns the comments of a script or a style sheet, line by line. Docstrings of Python are comments, its other texts
// in three quotes are not.
std::vector<std::string> ScriptComments(const std::string& file, const std::vector<std::string>& lines) {
  const bool has_hashes = file.ends_with(".py") || file.ends_with(".sh");
  const char* const begin = has_hashes ? "\"\"\"" : "/*";
  const char* const end = has_hashes ? "\"\"\"" : "*/";
  const std::string mark = has_hashes ? "#" : "//";
  std::vector<std::string> comments;
  bool in_block = false, in_text = false;
  for (const std::string& line : lines) {
    std::string rest(absl::StripLeadingAsciiWhitespace(line));
    const bool opens = !in_block && !in_text && rest.starts_with(begin);
    const std::vector<std::string> between = absl::StrSplit(rest, begin);
    if (has_hashes && !in_block && !opens && between.size() % 2 == 0) in_text = !in_text;
    if (opens) rest = rest.substr(std::string_view(begin).size());
    if (opens || in_block) {
      const size_t closing = rest.find(end);
      in_block = closing == std::string::npos;
      comments.push_back(rest.substr(0, closing));
      continue;
    }
    size_t at = in_text ? std::string::npos : rest.find(mark);
    while (at != std::string::npos && at > 0 && rest[at - 1] != ' ') at = rest.find(mark, at + 1);
    comments.push_back(at == std::string::npos ? "" : rest.substr(at + mark.size()));
  }
  return comments;
}

// Returns the string literals of C++, line by line.
std::vector<std::string> Texts(const std::string&, const std::vector<std::string>& lines) {
  std::vector<std::string> texts;
  for (const CppLine& line : SplitCpp(lines)) {
    std::string& text = texts.emplace_back();
    for (size_t i = 0; i < line.code.size(); ++i) {
      if (line.code[i] != '"' || (i > 0 && line.code[i - 1] == '\'')) continue;
      for (++i; i < line.code.size() && line.code[i] != '"'; ++i) {
        i += line.code[i] == '\\';
        if (i < line.code.size()) text += line.code[i];
      }
      text += ' ';
    }
  }
  return texts;
}

// Returns as many lines as `lines` has: comments, or a document without its code blocks. Other lines are empty.
std::vector<std::string> Prose(const std::string& file, const std::vector<std::string>& lines) {
  std::vector<std::string> prose;
  if (IsCpp(file)) {
    for (CppLine& line : SplitCpp(lines)) prose.push_back(std::move(line.comment));
    return prose;
  }
  bool in_block = false;
  for (const std::string& line : lines) {
    const bool is_fence = absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "```");
    if (is_fence) in_block = !in_block;
    prose.push_back(is_fence || in_block || line.starts_with("    ") ? "" : line);
  }
  return prose;
}

// Maximal runs of characters that `is_part` accepts.
template <typename IsPart>
std::vector<std::string_view> Runs(std::string_view text, IsPart is_part) {
  std::vector<std::string_view> runs;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t begin = i;
    while (i < text.size() && is_part(text[i])) ++i;
    if (i > begin) runs.push_back(text.substr(begin, i - begin));
  }
  return runs;
}

std::vector<std::string_view> CodeWords(std::string_view text) {
  return Runs(text, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

struct DialectCount {
  int words = 0;
  int dialect = 0;
};

DialectCount CountDialect(const std::vector<std::string>& prose) {
  const std::string text = absl::AsciiStrToLower(absl::StrJoin(prose, " "));
  const std::vector<std::string_view> words = Runs(text, [](char c) { return absl::ascii_isalpha(c) || c == '\''; });
  DialectCount count = {.words = static_cast<int>(words.size())};
  for (auto word = words.begin(); word != words.end(); ++word) {
    count.dialect += FormerDialect().words.contains(*word);
    for (const std::vector<std::string_view>& phrase : FormerDialect().phrases) {
      count.dialect += words.end() - word >= static_cast<std::ptrdiff_t>(phrase.size()) &&
                       std::equal(phrase.begin(), phrase.end(), word);
    }
  }
  return count;
}

// What is counted together: the prose of these files.
struct DialectGroup {
  const char* name;
  bool (*is_counted)(std::string_view file);
  std::vector<std::string> (*prose)(const std::string& file, const std::vector<std::string>& lines);
};
constexpr DialectGroup kDialectGroups[] = {{"comments", IsCpp, Prose},
                                           {"comments of scripts", IsScript, ScriptComments},
                                           {"texts of the programs", IsProductCpp, Texts},
                                           {"documents", IsDocument, Prose}};

void CheckDialectOf(const SourceTree& tree, const DialectGroup& group, std::vector<std::string>& findings) {
  constexpr size_t kNamed = 10;
  DialectCount all;
  std::vector<std::pair<int, std::string>> files;
  for (const auto& [file, lines] : tree) {
    if (!group.is_counted(file)) continue;
    const DialectCount count = CountDialect(group.prose(file, lines));
    all.words += count.words;
    all.dialect += count.dialect;
    if (count.dialect > 0) files.push_back({count.dialect, file});
  }
  const double rate = 1000.0 * all.dialect / std::max(all.words, 1);
  if (rate <= kMostDialect) return;
  std::sort(files.rbegin(), files.rend());
  if (files.size() > kNamed) files.resize(kNamed);
  const std::string most = absl::StrJoin(files, ", ", [](std::string* out, const auto& file) {
    absl::StrAppend(out, file.second, " (", file.first, ")");
  });
  findings.push_back(absl::StrCat(files.front().second, ":1: ", group.name, " have ", rate,
                                  " dialect words in 1,000 words, more than ", kMostDialect, ". Most: ", most));
}

// The words of the code, against which names in prose are checked.
struct CodeIndex {
  std::unordered_set<std::string> words;
  std::set<std::string> folders;                                      // at the top of the tree
  std::map<std::string, std::unordered_set<std::string>> file_words;  // by path without the extension
  std::map<std::string, std::set<std::string>> declared_in;           // name of a type or namespace → such paths
  std::map<std::string, std::set<std::string>> bases;                 // class → base classes
};

// Files whose words are code. The files of this rule are left out, since they hold examples of wrong names.
bool HasCode(std::string_view file) {
  const bool is_data = file.starts_with("tests/golden") && !file.starts_with("tests/golden_runner/");
  if (is_data || file.starts_with("tests/layout/source_rules")) return false;
  if (IsCpp(file) || file.ends_with("CMakeLists.txt")) return true;
  for (std::string_view extension : {".cmake", ".conf", ".css", ".html", ".inc", ".js", ".json", ".proto", ".py",
                                     ".service", ".sh", ".toml", ".yaml", ".yml"}) {
    if (file.ends_with(extension)) return true;
  }
  return false;
}

void IndexLine(const std::string& code, const std::string& stem, CodeIndex& index) {
  static const auto* keywords = new std::set<std::string_view>{"class",   "enum",   "message", "namespace", "rpc",
                                                               "service", "struct", "union",   "using"};
  const std::vector<std::string_view> words = CodeWords(code);
  for (size_t i = 0; i < words.size(); ++i) {
    index.words.insert(std::string(words[i]));
    index.file_words[stem].insert(std::string(words[i]));
    if (i == 0 || !keywords->contains(words[0])) continue;
    const bool is_base = std::find(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(i), "public") !=
                         words.begin() + static_cast<std::ptrdiff_t>(i);
    if (is_base) {
      index.bases[std::string(words[1])].insert(std::string(words[i]));
    } else {
      index.declared_in[std::string(words[i])].insert(stem);
    }
  }
}

CodeIndex IndexCode(const SourceTree& tree) {
  CodeIndex index;
  for (const auto& [file, lines] : tree) {
    const std::filesystem::path path(file);
    if (path.has_parent_path()) index.folders.insert(path.begin()->string());
    index.words.insert(path.stem().string());
    if (!HasCode(file)) continue;
    const std::string stem = (path.parent_path() / path.stem()).generic_string();
    if (IsCpp(file)) {
      for (const CppLine& line : SplitCpp(lines)) IndexLine(line.code, stem, index);
    } else {
      for (const std::string& line : lines) {
        if (!absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "#")) IndexLine(line, stem, index);
      }
    }
  }
  return index;
}

// Accepts also the plural of a name, and a status code without its "Error".
bool IsWord(const CodeIndex& index, const std::string& name) {
  return index.words.contains(name) || index.words.contains(name + "Error") ||
         (name.ends_with('s') && index.words.contains(name.substr(0, name.size() - 1)));
}

// Whether the files that declare the type or namespace, or one of its base classes, have the word. `depth` bounds the
// chain of bases, since classes of one name in different files may seem to be bases of each other.
bool HasMember(const CodeIndex& index, const std::string& type, const std::string& member, int depth = 4) {
  const auto declared = index.declared_in.find(type);
  if (declared == index.declared_in.end()) return index.words.contains(member);
  for (const std::string& stem : declared->second) {
    if (index.file_words.at(stem).contains(member)) return true;
  }
  const auto bases = index.bases.find(type);
  if (bases == index.bases.end() || depth == 0) return false;
  return std::any_of(bases->second.begin(), bases->second.end(),
                     [&](const std::string& base) { return HasMember(index, base, member, depth - 1); });
}

// A capital, a small letter or digit, and a capital further on: "StepPlan", but not "GPU" or "Plan".
bool IsMixedCase(std::string_view name) {
  return name.size() > 2 && absl::ascii_isupper(name[0]) && !absl::ascii_isupper(name[1]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c); }) &&
         std::any_of(name.begin() + 2, name.end(), [](char c) { return absl::ascii_isupper(c); });
}

// Looks up `Type::Member` of the project, a name in mixed case, and a member that ends in an underscore. Other words
// cannot be distinguished from English and count as existing.
bool NameExists(const CodeIndex& index, const std::string& name) {
  static const auto* qualified = new std::regex("([A-Za-z_]\\w*::)+[A-Za-z_]\\w*");
  static const auto* underscore = new std::regex("[a-z]\\w*_");
  static const auto* foreign =
      new std::set<std::string_view>{"absl", "at", "boost", "c10", "google", "grpc", "std", "testing", "torch"};
  if (IsForeign(name)) return true;
  if (absl::StrContains(name, "::") && std::regex_match(name, *qualified)) {
    const std::vector<std::string> parts = absl::StrSplit(name, "::");
    if (foreign->contains(parts.front())) return true;
    return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return IsWord(index, part); }) &&
           HasMember(index, parts[parts.size() - 2], parts.back());
  }
  if (IsMixedCase(name)) return IsWord(index, name);
  return !name.ends_with('_') || !std::regex_match(name, *underscore) || index.words.contains(name);
}

// Returns the paths of files whose first folder is one of the tree's; "a/b.{h,cc}" is two paths. The characters before
// and after a match rule out wildcards, placeholders, addresses and parts of longer paths.
std::vector<std::string> Paths(const CodeIndex& index, const std::string& text) {
  static const auto* pattern = new std::regex(
      R"((^|[^\w/.$~*}>-])((?:[\w.-]+/)+[\w.-]+\.))"
      R"((\{[a-z,]+\}|(?:h|cc|cu|cuh|inc|py|sh|md|proto|json|ya?ml|cmake|js|txt|csv|html)\b)(?![/*\w]))");
  std::vector<std::string> paths;
  if (!absl::StrContains(text, '/')) return paths;
  for (std::sregex_iterator match(text.begin(), text.end(), *pattern); match != std::sregex_iterator(); ++match) {
    const std::string stem = (*match)[2], extensions = (*match)[3];
    if (!index.folders.contains(stem.substr(0, stem.find('/')))) continue;
    for (const absl::string_view extension : absl::StrSplit(extensions, absl::ByAnyChar("{,}"), absl::SkipEmpty())) {
      paths.push_back(absl::StrCat(stem, extension));
    }
  }
  return paths;
}

// Returns the candidates for names of code in a line: every word of a comment, but of a document only backquotes that
// hold one name, with arguments or without.
std::vector<std::string> NamesIn(const std::string& line, bool is_comment) {
  static const auto* quoted = new std::regex("`([^`]+)`");
  static const auto* whole = new std::regex(R"(((?:\w+(?:::|\.))*\w+)(?:\(.*\))?)");
  std::vector<std::string> names;
  const auto add_words = [&](std::string_view text) {
    for (std::string_view run : Runs(text, [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == ':'; })) {
      while (run.ends_with(':')) run.remove_suffix(1);
      if (!run.empty()) names.emplace_back(run);
    }
  };
  if (is_comment) {
    add_words(line);
    return names;
  }
  for (std::sregex_iterator match(line.begin(), line.end(), *quoted); match != std::sregex_iterator(); ++match) {
    const std::string span = (*match)[1];
    if (std::smatch name; std::regex_match(span, name, *whole)) add_words(name[1].str());
  }
  return names;
}

bool IsProduct(const std::filesystem::path& name) {
  static const auto* names =
      new std::set<std::string>{".git", ".deps", "build", "dist", "output", "shared", "__pycache__"};
  return names->contains(name.string()) || name.string().starts_with("build-");
}

}  // namespace

bool IsCpp(std::string_view file) {
  for (std::string_view extension : {".h", ".cc", ".cu", ".cuh"}) {
    if (file.ends_with(extension)) return true;
  }
  return false;
}

bool IsTest(std::string_view file) {
  return file.starts_with("tests/") || file.ends_with("_test.cc") || file.ends_with("_fuzz.cc");
}

SourceTree ReadSourceTree(const std::filesystem::path& root) {
  SourceTree tree;
  auto entry = std::filesystem::recursive_directory_iterator(root);
  for (; entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    if (entry.depth() == 0 && IsProduct(entry->path().filename())) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file() || entry->is_symlink()) continue;
    std::ifstream in(entry->path(), std::ios::binary);
    std::ostringstream buffer;
    buffer << in.rdbuf();
    const std::string content = std::move(buffer).str();
    if (content.find('\0') != std::string::npos) continue;
    std::vector<std::string> lines;
    std::istringstream text(content);
    for (std::string line; std::getline(text, line);) lines.push_back(std::move(line));
    tree[entry->path().lexically_relative(root).generic_string()] = std::move(lines);
  }
  return tree;
}

std::vector<std::string> CheckNamespaces(const SourceTree& tree) {
  static const auto* opening = new std::regex(R"(^namespace tessera(::(\w+))?.*\{$)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    const std::string room = file.substr(0, file.find('/'));
    if (!IsCpp(file) || room == "tests" || room == "bench" || room == "examples") continue;
    std::set<std::string> opened;
    for (const std::string& line : lines) {
      if (std::smatch match; std::regex_match(line, match, *opening)) opened.insert(match[2]);
    }
    const std::string own = file.starts_with(kInstalledHeaders) ? "" : room;
    if (!opened.empty() && !opened.contains(own)) {
      findings.push_back(
          absl::StrCat(file, ":1: it declares nothing in its own namespace, tessera", own.empty() ? "" : "::", own));
    }
    if (!own.empty() && opened.contains("")) {
      findings.push_back(absl::StrCat(file, ":1: it declares in tessera, not in tessera::", own));
    }
  }
  return findings;
}

std::vector<std::string> CheckFunctions(const SourceTree& tree) {
  // As clang-format sets it: the closing brace stands below the beginning of the head, whose last line ends with the
  // opening one and whose other lines are further in.
  static const auto* beginning = new std::regex(R"(^ {0,4}[A-Za-z~].*)");
  static const auto* no_function = new std::regex(
      R"(^ *(if|for|while|switch|do|else|return|case|namespace|class|struct|enum|union|public|private)\b.*)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    if (!IsCpp(file) || IsTest(file)) continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (!std::regex_match(lines[i], *beginning) || std::regex_match(lines[i], *no_function)) continue;
      const size_t indent = lines[i].find_first_not_of(' ');
      const auto is_inside = [&](size_t line) {
        return line < lines.size() &&
               (lines[line].empty() || lines[line].starts_with('#') || lines[line].find_first_not_of(' ') > indent);
      };
      size_t head = i;
      while (!lines[head].ends_with('{') && !lines[head].ends_with(';') && is_inside(head + 1)) ++head;
      if (!lines[head].ends_with(" {") || lines[head].ends_with("= {")) continue;
      size_t last = head + 1;
      while (is_inside(last)) ++last;
      if (last - head - 1 > kMaxFunctionLines) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": a function of ", last - head - 1, " lines, more than ",
                                        kMaxFunctionLines, ": it is two functions"));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckTopLevels(const SourceTree& tree) {
  std::map<std::string, int> files;
  for (const auto& [file, lines] : tree) {
    for (const char* room : {"base", "client", "control", "models", "runtime", "server"}) {
      if (std::filesystem::path(file).parent_path() == room) ++files[room];
    }
  }
  std::vector<std::string> findings;
  for (const auto& [room, count] : files) {
    // Only CMakeLists.txt for the two rooms that every other one includes.
    const int most = room == "base" || room == "control" ? 1 : kMaxFilesAtTheTop;
    if (count > most) {
      findings.push_back(absl::StrCat(room, "/ has ", count, " files at its top, more than ", most,
                                      ": give those that make one idea a folder"));
    }
  }
  return findings;
}

std::vector<std::string> CheckTestPrograms(const SourceTree& tree) {
  int programs = 0;
  for (const auto& [file, lines] : tree) {
    if (std::filesystem::path(file).filename() != "CMakeLists.txt") continue;
    for (const std::string& line : lines) {
      const absl::string_view command = absl::StripLeadingAsciiWhitespace(line);
      programs += absl::StartsWith(command, "tessera_test(") || absl::StartsWith(command, "tessera_tests(");
    }
  }
  if (programs <= kMaxTestPrograms) return {};
  return {absl::StrCat("the CMakeLists.txt files make ", programs, " test programs, more than ", kMaxTestPrograms,
                       ": add the source to a program with the same libraries")};
}

std::vector<std::string> CheckMachinePaths(const SourceTree& tree) {
  // Where people and build services keep their checkouts.
  static const auto* pattern =
      new std::regex(R"((^|[^A-Za-z0-9_.\-}/])/(home|root|Users|work|workspace|builds|mnt)/[A-Za-z0-9._\-])");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].find('/') != std::string::npos && lines[i].size() < 4000 && std::regex_search(lines[i], *pattern)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": names a place on somebody's machine: ", lines[i]));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckPlantedBugs(const SourceTree& tree) {
  static const auto* pattern = new std::regex(R"re(\bPlanted\("(\w+)"\))re");
  std::string tests;
  for (const auto& [file, lines] : tree) {
    if (file.ends_with("_planted_test.cc")) absl::StrAppend(&tests, absl::StrJoin(lines, "\n"));
  }
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    if (!IsCpp(file) || file.starts_with("tests/") || file.starts_with("base/")) continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(lines[i], match, *pattern)) continue;
      if (tests.find(absl::StrCat("\"", match[1].str(), "\"")) != std::string::npos) continue;
      findings.push_back(absl::StrCat(file, ":", i + 1, ": no test plants ", match[1].str()));
    }
  }
  return findings;
}

std::vector<std::string> CheckSleeps(const SourceTree& tree) {
  static const auto* sleep =
      new std::regex(R"(\b(SleepFor|sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(|^\s*(do )?sleep\b.*[0-9$])");
  static const auto* bound = new std::regex(R"(_L[TE]\((absl::\w+\()?[\w:]*[Nn]ow\(\) -)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    const bool is_test = file.starts_with("tests/") && (IsCpp(file) || file.ends_with(".sh"));
    if (!is_test && !file.ends_with("_test.cc")) continue;
    if (file.starts_with("tests/support/wait_until.")) continue;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (std::regex_search(lines[i], *sleep)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": sleeps: wait for what must happen with WaitUntil"));
      }
      if (std::regex_search(lines[i], *bound)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": bounds the time that passes: count, or wait"));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckProcessorCounts(const SourceTree& tree) {
  static const auto* pattern = new std::regex(
      R"(\b(hardware_concurrency|_SC_NPROCESSORS_(ONLN|CONF)|get_nprocs|sched_getaffinity|omp_get_num_procs)\b)");
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    if (!IsCpp(file) || IsTest(file) || file.starts_with("bench/") || file == "base/machine/machine_processors.cc") {
      continue;
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      if (std::smatch match; std::regex_search(lines[i], match, *pattern)) {
        findings.push_back(absl::StrCat(file, ":", i + 1, ": ", match.str(),
                                        " knows no control group: base/machine/machine_processors.h does"));
      }
    }
  }
  return findings;
}

std::vector<std::string> CheckDialect(const SourceTree& tree) {
  std::vector<std::string> findings;
  for (const DialectGroup& group : kDialectGroups) CheckDialectOf(tree, group, findings);
  return findings;
}

std::vector<std::string> CheckNames(const SourceTree& tree) {
  const CodeIndex index = IndexCode(tree);
  std::vector<std::string> findings;
  for (const auto& [file, lines] : tree) {
    const bool is_comment = IsCpp(file);
    if (!is_comment && (!file.ends_with(".md") || file.starts_with("tests/"))) continue;
    if (file.starts_with("tests/layout/source_rules")) continue;
    const std::vector<std::string> prose = Prose(file, lines);
    for (size_t i = 0; i < prose.size(); ++i) {
      const std::string at = absl::StrCat(file, ":", i + 1, ": names ");
      for (const std::string& path : Paths(index, prose[i])) {
        if (!tree.contains(path) && !IsForeign(path)) findings.push_back(absl::StrCat(at, path, ", which is no file"));
      }
      for (const std::string& name : NamesIn(prose[i], is_comment)) {
        if (!NameExists(index, name)) findings.push_back(absl::StrCat(at, name, ", which no code has"));
      }
    }
  }
  return findings;
}

}  // namespace tessera::layout
