#include "models/captions/linear_regex.h"

#include <algorithm>
#include <cstdlib>

#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

constexpr int kUnbounded = -1;

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

bool LinearRegex::CharSet::Holds(char32_t c) const {
  bool found = std::any_of(ranges.begin(), ranges.end(),
                           [c](const auto& range) { return c >= range.first && c <= range.second; });
  found = found || (space && IsSpace(c)) || (not_space && !IsSpace(c)) || (digit && IsDigit(c)) ||
          (not_digit && !IsDigit(c)) || (word && IsWord(c)) || (not_word && !IsWord(c));
  return found != negated;
}

void LinearRegex::CharSet::Tabulate() {
  for (char32_t c = 0; c < latin1.size(); ++c) latin1[c] = Holds(c);
}

// Compiles the pattern by recursive descent. A repetition compiles its operand again by parsing it again.
class RegexCompiler {
 public:
  RegexCompiler(std::u32string_view pattern, LinearRegex* regex) : pattern_(pattern), regex_(*regex) {}

  void Compile() {
    Alternatives();
    Require(position_ == pattern_.size());
    Emit(LinearRegex::Op::kMatch);
    std::vector<bool> seen(regex_.program_.size());
    regex_.first_sets_.emplace_back();
    CollectFirstSets(0, &seen);
    for (LinearRegex::CharSet& set : regex_.first_sets_) set.Tabulate();
    for (LinearRegex::CharSet& set : regex_.sets_) set.Tabulate();
  }

 private:
  bool AtEnd() const { return position_ == pattern_.size(); }
  char32_t Peek() const { return AtEnd() ? U'\0' : pattern_[position_]; }
  bool Accept(std::u32string_view token) {
    if (pattern_.substr(position_, token.size()) != token) return false;
    position_ += token.size();
    return true;
  }
  struct Mark {
    size_t position, program, sets;
  };
  Mark Remember() const { return {position_, regex_.program_.size(), regex_.sets_.size()}; }
  void Forget(const Mark& mark) {
    position_ = mark.position;
    regex_.program_.resize(mark.program);
    regex_.sets_.resize(mark.sets);
  }
  int32_t Here() const { return static_cast<int32_t>(regex_.program_.size()); }
  int32_t Emit(LinearRegex::Op op, int32_t first = 0, int32_t second = 0) {
    regex_.program_.push_back({op, first, second});
    return Here() - 1;
  }

  void Alternatives() {
    std::vector<int32_t> ends;
    const Mark begin = Remember();
    Sequence();
    if (Peek() != U'|') return;
    Forget(begin);  // it is one of several alternatives: compile it again after a split
    while (true) {
      const int32_t split = Emit(LinearRegex::Op::kSplit);
      regex_.program_[split].first = Here();
      Sequence();
      if (!Accept(U"|")) {
        // The last alternative needs no second target.
        regex_.program_[split].second = regex_.program_[split].first;
        break;
      }
      ends.push_back(Emit(LinearRegex::Op::kJump));
      regex_.program_[split].second = Here();
    }
    for (const int32_t end : ends) regex_.program_[end].first = Here();
  }

  void Sequence() {
    while (!AtEnd() && Peek() != U'|' && Peek() != U')') Repetition();
  }

  void Repetition() {
    const Mark begin = Remember();
    Atom();
    int low = 1, high = 1;
    if (Accept(U"*")) {
      low = 0, high = kUnbounded;
    } else if (Accept(U"+")) {
      low = 1, high = kUnbounded;
    } else if (Accept(U"?")) {
      low = 0, high = 1;
    } else if (Accept(U"{")) {
      low = high = Number();
      if (Accept(U",")) high = Peek() == U'}' ? kUnbounded : Number();
      Require(Accept(U"}"));
    } else {
      return;
    }
    const size_t after = position_;
    Forget(begin);
    const auto repeat = [&] {
      position_ = begin.position;
      Atom();
    };
    for (int i = 0; i < low; ++i) repeat();
    if (high == kUnbounded) {
      const int32_t split = Emit(LinearRegex::Op::kSplit);
      regex_.program_[split].first = Here();
      repeat();
      Emit(LinearRegex::Op::kJump, split);
      regex_.program_[split].second = Here();
    } else {
      std::vector<int32_t> splits;
      for (int i = low; i < high; ++i) {
        splits.push_back(Emit(LinearRegex::Op::kSplit));
        regex_.program_[splits.back()].first = Here();
        repeat();
      }
      for (const int32_t split : splits) regex_.program_[split].second = Here();
    }
    position_ = after;
  }

  int Number() {
    Require(IsAsciiDigit(Peek()));
    int value = 0;
    while (IsAsciiDigit(Peek())) value = value * 10 + static_cast<int>(pattern_[position_++] - U'0');
    return value;
  }

  void Atom() {
    if (Accept(U"(?!")) {
      Emit(LinearRegex::Op::kNotAhead, Set());
      Require(Accept(U")"));
    } else if (Accept(U"(?:") || Accept(U"(")) {
      Alternatives();
      Require(Accept(U")"));
    } else if (Accept(U"^")) {
      Emit(LinearRegex::Op::kBegin);
    } else if (Accept(U"$")) {
      Emit(LinearRegex::Op::kEnd);
    } else if (Accept(U"\\b")) {
      Emit(LinearRegex::Op::kWordBoundary);
    } else {
      Emit(LinearRegex::Op::kSet, Set());
    }
  }

  int32_t Set() {
    LinearRegex::CharSet set;
    if (Accept(U".")) {
      set.negated = true;
      set.ranges = {{U'\n', U'\n'}};
    } else if (Accept(U"[")) {
      set.negated = Accept(U"^");
      while (Peek() != U']') Member(/*in_brackets=*/true, &set);
      Require(Accept(U"]"));
    } else {
      Require(std::u32string_view(U"*+?{").find(Peek()) == std::u32string_view::npos);
      Member(/*in_brackets=*/false, &set);
    }
    regex_.sets_.push_back(std::move(set));
    return static_cast<int32_t>(regex_.sets_.size()) - 1;
  }

  void Member(bool in_brackets, LinearRegex::CharSet* set) {
    const std::optional<char32_t> low = Character(set);
    if (!low) return;
    char32_t high = *low;
    if (in_brackets && Accept(U"-")) {
      const std::optional<char32_t> end = Character(set);
      Require(end.has_value() && *end >= *low);
      high = *end;
    }
    set->ranges.emplace_back(*low, high);
  }

  std::optional<char32_t> Character(LinearRegex::CharSet* set) {
    Require(!AtEnd());
    const char32_t c = pattern_[position_++];
    if (c != U'\\') return c;
    Require(!AtEnd());
    const char32_t escaped = pattern_[position_++];
    bool* const member = escaped == U's'   ? &set->space
                         : escaped == U'S' ? &set->not_space
                         : escaped == U'd' ? &set->digit
                         : escaped == U'D' ? &set->not_digit
                         : escaped == U'w' ? &set->word
                         : escaped == U'W' ? &set->not_word
                                           : nullptr;
    if (member == nullptr) return escaped;
    *member = true;
    return std::nullopt;
  }

  void CollectFirstSets(int32_t at, std::vector<bool>* seen) {
    if ((*seen)[at]) return;
    (*seen)[at] = true;
    const LinearRegex::Instruction instruction = regex_.program_[at];
    switch (instruction.op) {
      case LinearRegex::Op::kSet:
        AddFirstSet(regex_.sets_[instruction.first]);
        return;
      case LinearRegex::Op::kSplit:
        CollectFirstSets(instruction.first, seen);
        CollectFirstSets(instruction.second, seen);
        return;
      case LinearRegex::Op::kJump:
        CollectFirstSets(instruction.first, seen);
        return;
      case LinearRegex::Op::kMatch:
        Require(false);  // the pattern matches the empty text
        return;
      default:
        CollectFirstSets(at + 1, seen);
    }
  }

  void AddFirstSet(const LinearRegex::CharSet& set) {
    if (set.negated) return regex_.first_sets_.push_back(set);
    LinearRegex::CharSet& all = regex_.first_sets_.front();
    for (const auto flag :
         {&LinearRegex::CharSet::space, &LinearRegex::CharSet::not_space, &LinearRegex::CharSet::digit,
          &LinearRegex::CharSet::not_digit, &LinearRegex::CharSet::word, &LinearRegex::CharSet::not_word}) {
      all.*flag = all.*flag || set.*flag;
    }
    for (const auto& range : set.ranges) {
      if (std::find(all.ranges.begin(), all.ranges.end(), range) == all.ranges.end()) all.ranges.push_back(range);
    }
  }

  std::u32string_view pattern_;
  LinearRegex& regex_;
  size_t position_ = 0;
};

// The threads that are active at one position, in order of preference, at most one per instruction.
class RegexThreads {
 public:
  struct Thread {
    int32_t at;
    size_t begin;
  };

  RegexThreads(const LinearRegex& regex, std::u32string_view text)
      : regex_(regex), text_(text), last_seen_(regex.program_.size(), kNever) {}

  void Add(int32_t at, size_t begin, size_t position) {
    if (last_seen_[at] == position) return;
    last_seen_[at] = position;
    const LinearRegex::Instruction& instruction = regex_.program_[at];
    switch (instruction.op) {
      case LinearRegex::Op::kJump:
        return Add(instruction.first, begin, position);
      case LinearRegex::Op::kSplit:
        Add(instruction.first, begin, position);
        return Add(instruction.second, begin, position);
      case LinearRegex::Op::kSet:
      case LinearRegex::Op::kMatch:
        threads.push_back({at, begin});
        return;
      default:
        if (Holds(instruction, position)) Add(at + 1, begin, position);
    }
  }

  void Clear() {
    threads.clear();
    std::fill(last_seen_.begin(), last_seen_.end(), kNever);
  }

  std::vector<Thread> threads;

 private:
  static constexpr size_t kNever = static_cast<size_t>(-1);

  bool Holds(const LinearRegex::Instruction& instruction, size_t position) const {
    switch (instruction.op) {
      case LinearRegex::Op::kBegin:
        return position == 0;
      case LinearRegex::Op::kEnd:
        return position == text_.size() || (position + 1 == text_.size() && text_[position] == U'\n');
      case LinearRegex::Op::kNotAhead:
        return position == text_.size() || !regex_.sets_[instruction.first].Contains(text_[position]);
      default:
        return (position > 0 && IsWord(text_[position - 1])) != (position < text_.size() && IsWord(text_[position]));
    }
  }

  const LinearRegex& regex_;
  std::u32string_view text_;
  std::vector<size_t> last_seen_;
};

// Searches one text repeatedly, from later and later positions.
class RegexSearch {
 public:
  RegexSearch(const LinearRegex& regex, std::u32string_view text) : regex_(regex), text_(text) {}

  std::optional<std::pair<size_t, size_t>> Find(size_t from) {
    from = NextBegin(from);
    if (from >= text_.size()) return std::nullopt;  // most searches end here, before anything is allocated
    if (!even_) even_.emplace(regex_, text_), odd_.emplace(regex_, text_);
    even_->Clear();
    odd_->Clear();
    RegexThreads* current = &*even_;
    RegexThreads* next = &*odd_;
    std::optional<std::pair<size_t, size_t>> match;
    for (size_t position = from; position <= text_.size(); ++position) {
      if (current->threads.empty()) {
        if (match) break;
        position = NextBegin(position);
        if (position == text_.size()) break;
      }
      if (!match) current->Add(0, position, position);
      next->threads.clear();
      for (const RegexThreads::Thread& thread : current->threads) {
        const LinearRegex::Instruction& instruction = regex_.program_[thread.at];
        if (instruction.op == LinearRegex::Op::kMatch) {
          match = {thread.begin, position};
          break;  // the threads after it are less preferred
        }
        if (position < text_.size() && regex_.sets_[instruction.first].Contains(text_[position])) {
          next->Add(thread.at + 1, thread.begin, position + 1);
        }
      }
      std::swap(current, next);
    }
    return match;
  }

 private:
  // Returns the first position from `position` on at which a match can begin; the end if there is none.
  size_t NextBegin(size_t position) const {
    const auto can_begin = [&](const LinearRegex::CharSet& set) { return set.Contains(text_[position]); };
    while (position < text_.size() && std::none_of(regex_.first_sets_.begin(), regex_.first_sets_.end(), can_begin)) {
      ++position;
    }
    return position;
  }

  const LinearRegex& regex_;
  const std::u32string_view text_;
  std::optional<RegexThreads> even_, odd_;
};

LinearRegex::LinearRegex(std::u32string_view pattern) { RegexCompiler(pattern, this).Compile(); }

std::optional<std::pair<size_t, size_t>> LinearRegex::Find(std::u32string_view text, size_t from) const {
  return RegexSearch(*this, text).Find(from);
}

std::u32string LinearRegex::ReplaceAll(std::u32string_view text, std::u32string_view replacement) const {
  return ReplaceEach(text, [replacement](std::u32string_view) { return std::u32string(replacement); });
}

std::u32string LinearRegex::ReplaceEach(std::u32string_view text,
                                        const std::function<std::u32string(std::u32string_view)>& replace) const {
  std::u32string result;
  size_t done = 0;
  RegexSearch search(*this, text);
  while (const auto match = search.Find(done)) {
    result.append(text, done, match->first - done);
    result += replace(text.substr(match->first, match->second - match->first));
    done = match->second;
  }
  result.append(text, done);
  return result;
}

}  // namespace tessera::models::caption
