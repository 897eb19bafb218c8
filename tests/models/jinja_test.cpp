// The language piece by piece: values as Python prints them, white space control, scoping, limits,
// and every kind of error with its line. The bulk of the expected texts was checked against Jinja2.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/text/chat_template.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr char kInputs[] =
    R"({"s":"Héllo World","l":[3,1,2],"d":{"a":1,"items":7,"c":{"d":"deep"}},"n":5,"e":"",)"
    R"("lm":[{"k":"x","v":2},{"k":"Y","v":1},{"k":"x","v":3}]})";

std::string render(const std::string& source, RenderLimits limits = {}) {
  try {
    return ChatTemplate::parse(source).render(kInputs, limits).text;
  } catch (const Error& error) {
    return std::string("! ") + error.what();
  }
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

void expect_values(const Pairs& pairs) {
  for (const auto& [expression, expected] : pairs) {
    EXPECT_EQ(render("{{ " + expression + " }}"), expected) << expression;
  }
}

void expect_errors(const Pairs& pairs) {
  for (const auto& [source, part] : pairs) {
    const std::string text = render(source);
    EXPECT_EQ(text.substr(0, 2), "! ") << source << " gave " << text;
    EXPECT_NE(text.find(part), std::string::npos) << source << " gave " << text;
  }
}

TEST(JinjaExpressions, Precedence) {
  expect_values({{"1 + 2 * 3 - 4", "3"},
                 {"2 ** 3 ** 2", "64"},
                 {"-2 ** 2", "4"},
                 {"1 ~ 2 + 3", "! chat template line 1: '+' does not work between 'str' and 'int'"},
                 {"1 + 2 ~ 3", "! chat template line 1: '+' does not work between 'int' and 'str'"},
                 {"not 1 == 2", "True"},
                 {"1 or 0 and 0", "1"},
                 {"'a' ~ 'b' == 'ab'", "True"},
                 {"1 < 2 < 3 < 3", "False"},
                 {"'x' if 0 else 'y' if 0 else 'z'", "z"},
                 {"'x' if 0", ""},
                 {"-3|abs", "3"},
                 {"-n|string ~ 1", "-51"},
                 {"n is odd and not n is even", "True"},
                 {"1 not in l", "False"},
                 {"(1, 2)[1] + [3][-1]", "5"}});
}

TEST(JinjaExpressions, NumbersAsPython) {
  expect_values({{"7 // -2", "-4"},
                 {"-7 % 3", "2"},
                 {"7.5 // 2", "3.0"},
                 {"-7.5 % 2", "0.5"},
                 {"6 / 3", "2.0"},
                 {"2 ** -1", "0.5"},
                 {"1e16", "1e+16"},
                 {"123456789012345.0", "123456789012345.0"},
                 {"0.0001", "0.0001"},
                 {"0.00001", "1e-05"},
                 {"0x1F + 0b11 + 0o7 + 1_000", "1041"},
                 {"true + 1", "2"},
                 {"1 == 1.0 == true", "True"},
                 {"2.5|round", "2.0"},
                 {"3.14159|round(2)", "3.14"},
                 {"'3.9'|int", "3"},
                 {"'0x1f'|int(base=16)", "31"}});
}

TEST(JinjaFilters, ADefaultStandsForEachPartOfAnAttribute) {
  expect_values({{"[{'a': {'b': 1}}, {}]|map(attribute='a.b', default={'b': 2})|list", "[1, 2]"}});
}

TEST(JinjaExpressions, Subscripts) {
  expect_values({{"s[1]", "é"},
                 {"s[-5:]", "World"},
                 {"s[::-2]", "drWolH"},
                 {"l[1:]", "[1, 2]"},
                 {"l[::-1]", "[2, 1, 3]"},
                 {"l[5] is defined", "False"},
                 {"l[99:]", "[]"},
                 {"l.0", "3"},
                 {"d.c.d ~ d['c']['d']", "deepdeep"},
                 {"d['items']", "7"},
                 {"d.items()|length", "3"},
                 {"d.nothing is undefined", "True"},
                 {"d.get('nothing', 4)", "4"},
                 {"range(2, 10, 3)|list", "[2, 5, 8]"},
                 {"dict(a=1, b=2)['b']", "2"}});
}

TEST(JinjaExpressions, UndefinedIsQuietUntilUsed) {
  expect_values({{"missing", ""},
                 {"missing|length", "0"},
                 {"missing ~ 'x'", "x"},
                 {"'x' in missing", "False"},
                 {"missing|default('d')", "d"},
                 {"missing|selectattr('a')|list", "[]"}});
  expect_errors({{"{{ missing.name }}", "'missing' is undefined"},
                 {"{{ missing + 1 }}", "'missing' is undefined"},
                 {"{{ missing() }}", "'missing' is undefined"},
                 {"{{ d.b.c }}", "'dict object' has no attribute 'b'"}});
}

TEST(JinjaFilters, Sequences) {
  expect_values({{"lm|map(attribute='k')|unique|list", "['x', 'Y']"},
                 {"lm|sort(attribute='k,v')|map(attribute='v')|list", "[2, 3, 1]"},
                 {"lm|selectattr('v', 'gt', 1)|map(attribute='v')|sum", "5"},
                 {"lm|rejectattr('k', 'equalto', 'x')|list|length", "1"},
                 {"lm|sum(attribute='v')", "6"},
                 {"(lm|max(attribute='v')).k", "x"},
                 {"['b', 'A', 'c']|sort(case_sensitive=true)|join", "Abc"},
                 {"{'b': 1, 'A': 2}|dictsort", "[('A', 2), ('b', 1)]"},
                 {"[1, 2, 3]|batch(2)|list", "[[1, 2], [3]]"},
                 {"'abc'|list|reverse|join('-')", "c-b-a"},
                 {"[[1, 2], [3]]|map('length')|list", "[2, 1]"},
                 {"[0, 1, '', 'a']|select|list", "[1, 'a']"}});
}

TEST(JinjaFilters, TextMethods) {
  expect_values({{"'aXbXc'.split('X', 1)", "['a', 'bXc']"},
                 {"'aXbXc'.rsplit('X', 1)", "['aXb', 'c']"},
                 {"' a  b '.split()", "['a', 'b']"},
                 {"' a  b c '.rsplit(None, 1)", "[' a  b', 'c']"},
                 {"'aaa'.rsplit('aa')", "['a', '']"},
                 {"'xxabxx'.strip('x')", "ab"},
                 {"'\xC2\xA0 a \xE3\x80\x80'.strip()", "a"},
                 {"'they\\'re'.title()", "They'Re"},
                 {"'they\\'re'|title", "They're"},
                 {"'hELLO wORLD'.capitalize()", "Hello world"},
                 {"'straße'.upper()", "STRASSE"},
                 {"'banana'.replace('a', 'o', 2)", "bonona"},
                 {"'ab'.replace('', '-')", "-a-b-"},
                 {"'a\\nb\\r\\nc'.splitlines()", "['a', 'b', 'c']"},
                 {"'abc'.endswith(('x', 'c'))", "True"},
                 {"'héllo'.find('l', 3)", "3"},
                 {"'\\x41\\u00e9\\101\\d'", "AéA\\d"}});
}

TEST(JinjaStatements, WhiteSpaceControl) {
  const Pairs pairs = {{"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
                       {"a  {% if true %} b {% endif %} c", "a   b  c"},
                       {"a \n {%- if true -%} \n b \n {%- endif -%} \n c", "abc"},
                       {"  {{ 1 }}\n  {{- 2 -}}  \n 3", "  123"},
                       {"  {%+ if true %}x{% endif +%}\ny", "  x\ny"},
                       {"a\n  {# c #}\nb {#- d -#} e", "a\nbe"},
                       {"{% raw %} {{ x }} {%- endraw %}\n!", " {{ x }}!"},
                       {"x\n\n", "x\n"},
                       {"a\r\nb\rc", "a\nb\nc"}};
  for (const auto& [source, expected] : pairs) EXPECT_EQ(render(source), expected) << source;
}

TEST(JinjaStatements, Scopes) {
  const Pairs pairs = {
      {"{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "1"},
      {"{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"},
      {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = i %}{% endfor %}{{ ns.x }}",
       "2"},
      {"{% macro m() %}{{ x }}{% endmacro %}{% set x = 3 %}{{ m() }}", "3"},
      {"{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "312"},
      {"{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", "1"},
      {"{% for k, v in d.items() if v is integer %}{{ k }}{{ loop.length }}{% endfor %}",
       "a2items2"},
      {"{% for i in l %}{% for j in l %}{{ loop.index }}{% break %}{% endfor %}{{ loop.index "
       "}}{% endfor %}",
       "111213"},
      {"{% for i in l %}{% with a=i %}{{ a }}{% break %}{% endwith %}{% endfor %}", "3"},
      {"{% for i in l %}{% set t %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endset %}{{ t "
       "}}{% endfor %}",
       "32"},
      {"{% for i in l %}{% filter upper %}a{% break %}{% endfilter %}{% endfor %}b", "b"},
      {"{% macro f(a, b=a) %}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z=4) }}",
       "2(3,){'z': 4}"}};
  for (const auto& [source, expected] : pairs) EXPECT_EQ(render(source), expected) << source;
}

TEST(JinjaExpressions, StrFormatRefusesWhatDoesNotFit) {
  expect_errors({{"\n{{ '{}'.format() }}", "line 2: a format has no value number 0"},
                 {"{{ '{x}'.format(y=1) }}", "no value named 'x'"},
                 {"{{ '{} {0}'.format(1) }}", "may not mix numbered fields"},
                 {"{{ '{0} {}'.format(1) }}", "may not mix numbered fields"},
                 {"{{ '{'.format(1) }}", "a single '{' in a format"},
                 {"{{ '}'.format(1) }}", "a single '}' in a format"},
                 {"{{ '{0'.format(1) }}", "a field of a format has no end"},
                 {"{{ '{0[}'.format(l) }}", "a field of a format has no end"},
                 {"{{ '{0.}'.format(d) }}", "empty attribute"},
                 {"{{ '{0.a.b}'.format(s) }}", "has no attribute 'a'"},
                 {"{{ '{!x}'.format(1) }}", "the conversion '!x' is not supported"},
                 {"{{ '{:d}'.format('a') }}", "format code 'd' is not for a value of type 'str'"},
                 {"{{ '{:d}'.format(1.5) }}", "format code 'd' is not for a value of type 'float'"},
                 {"{{ '{:s}'.format(5) }}", "format code 's' is not for a value of type 'int'"},
                 {"{{ '{:>5}'.format(none) }}", "of type 'NoneType' takes no format spec"},
                 {"{{ '{:=5}'.format('a') }}", "for numbers was given to a text"},
                 {"{{ '{:.3d}'.format(5) }}", "without a precision"},
                 {"{{ '{:010,}'.format(5) }}", "not supported"},
                 {"{{ '{:9999}'.format(5) }}", "a number in a format is too large"},
                 {"{{ '{:q q}'.format(5) }}", "the format spec 'q q' is not supported"},
                 {"{{ '{:{:{:{}}}}'.format(1, 2, 3, 4) }}", "nested too deep"}});
}

TEST(JinjaErrors, OfTheSourceNameTheLine) {
  expect_errors({{"\n{{ 1 + }}", "line 2: unexpected '}}'"},
                 {"{{ (1 }}", "unexpected '}'"},
                 {"{{ 'abc }}", "line 1: a string is not closed"},
                 {"\n\n{{ 1", "line 3: a tag is not closed"},
                 {"{# x", "a comment is not closed"},
                 {"{% raw %}", "a raw block is not closed"},
                 {"{% if 1 %}", "'endif' is missing"},
                 {"{% for x in l %}{% endif %}", "'endif' has no tag"},
                 {"{% include 'x' %}", "tag 'include' is not supported"},
                 {"{% break %}", "outside a loop"},
                 {"{% set 1 = 2 %}", "expected a name"},
                 {"{% set none = 2 %}", "cannot assign to 'none'"},
                 {"{{ f(a=1, a=2) }}", "given twice"},
                 {"{{ f(a=1, 2) }}", "positional argument follows"},
                 {"{% macro m(a=1, b) %}{% endmacro %}", "without default"},
                 {"{{ '\\ud800' }}", "broken character escape"},
                 {"{{ 99999999999999999999 }}", "too large"},
                 {"{{ a ? b }}", "unexpected character '?'"},
                 {"\xff", "not valid UTF-8"}});
}

TEST(JinjaErrors, OfRenderingNameTheLine) {
  expect_errors({{"\n{{ 1 // 0 }}", "line 2: division by zero"},
                 {"{{ 1 + 'a' }}", "'+' does not work between 'int' and 'str'"},
                 {"{{ l|nofilter }}", "no filter named 'nofilter'"},
                 {"{{ l is notest }}", "no test named 'notest'"},
                 {"{{ l.append(1) }}", "may not change lists"},
                 {"{{ d.pop('a') }}", "may not change lists"},
                 {"{{ 5|join }}", "cannot work with a value of type 'int'"},
                 {"{{ 9223372036854775807 + 1 }}", "too large"},
                 {"{{ 2 ** 64 }}", "beyond 64 bits"},
                 {"{{ s|trim(1, 2) }}", "cannot work with"},
                 {"{{ s|upper(x=1) }}", "does not know"},
                 {"{{ lm|sort }}", "no order"},
                 {"{% set d.x = 1 %}", "only be set on a namespace"},
                 {"{% set ns = namespace(_x=1) %}", "may not start with '_'"},
                 {"{% for a, b in l %}{% endfor %}", "cannot work with a value of type 'int'"},
                 {"{{ (lm|map(attribute='k')) ~ '' }}", "generator cannot be printed"},
                 {"{{ {[]: 1} }}", "cannot be a dict key"},
                 {"{{ missing|tojson }}", "cannot be written as JSON"}});
}

TEST(JinjaErrors, NoHostObjectIsReachable) {
  expect_errors({{"{{ ''.__class__.__mro__ }}", "has no attribute '__class__'"},
                 {"{{ l.__init__.__globals__ }}", "has no attribute '__init__'"},
                 {"{{ range.__self__.x }}", "has no attribute '__self__'"},
                 {"{{ ''['__class__']['__base__'] }}", "has no attribute '__class__'"},
                 {"{{ (l|attr('__class__')).x }}", "no attribute '__class__'"}});
}

TEST(JinjaLimits, Nesting) {
  const auto wrapped = [](int count, const std::string& open, const std::string& close) {
    std::string source = "{{ ";
    for (int i = 0; i < count; ++i) source += open;
    source += "1";
    for (int i = 0; i < count; ++i) source += close;
    return source + " }}";
  };
  EXPECT_EQ(render(wrapped(60, "(", ")")), "1");
  for (const auto& [open, close] : Pairs{{"(", ")"},
                                         {"[", "]"},
                                         {"-", ""},
                                         {"not ", ""},
                                         {"l[", "]"},
                                         {"f(", ")"},
                                         {"{1: ", "}"},
                                         {"1 if 1 else ", ""}}) {
    EXPECT_NE(render(wrapped(5000, open, close)).find("nesting is deeper than 64"),
              std::string::npos)
        << open;
  }
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(render(blocks).find("nesting is deeper than 64"), std::string::npos);
  const std::string targets = "{% for " + std::string(20000, '(') + "a" + std::string(20000, ')');
  EXPECT_NE(render(targets + " in l %}").find("nesting"), std::string::npos);
}

TEST(JinjaLimits, LongChainsAreFlat) {
  std::string sum = "{{ 1", filters = "{{ 'a'", branches = "{% if 0 %}";
  for (int i = 0; i < 3000; ++i) {
    sum += " + 1";
    filters += "|trim";
    branches += "{% elif 0 %}";
  }
  EXPECT_EQ(render(sum + " }}"), "3001");
  EXPECT_EQ(render(filters + " }}"), "a");
  EXPECT_EQ(render(branches + "{% else %}x{% endif %}"), "x");
}

TEST(JinjaLimits, Rendering) {
  expect_errors(
      {{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"},
       {"{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "steps"},
       {"{{ range(10001) }}", "more than 10000 numbers"},
       {"{{ range(-900000000000000000, 900000000000000000) }}", "more than 10000"},
       {"{{ 'aaaaaaaaaa' * 999999999999 }}", "steps"},
       {"{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(40) %}"
        "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "longer than"},
       {"{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(19) %}"
        "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(1000) %}"
        "{{ 'b' in ns.s }}{% endfor %}",
        "too much text"},
       {"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}",
        "nested too deeply"},
       {"{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x == ns.x[0] + [1] }}{{ ns.x }}",
        "s"},
       {"{{ '%999999d' % 1 }}", "too large"},
       {"{{ 'x'|center(99999999) }}", "at most"},
       {"{{ [1]|batch(99999999, 0)|list }}", "1 to 10000"},
       {"{{ [1]|tojson(indent=99999999) }}", "at most 256"}});
  const RenderLimits small{.max_output_bytes = 10};
  EXPECT_EQ(render("0123456789", small), "0123456789");
  EXPECT_NE(render("0123456789{{ 1 }}", small).find("longer than 10 bytes"), std::string::npos);
  EXPECT_NE(render("{% for i in range(50) %}{% endfor %}", {.max_steps = 20}).find("steps"),
            std::string::npos);
}

TEST(JinjaLimits, ThingsThatPointToThemselves) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = [ns, ns] %}{{ ns.me == ns.me }}"),
            "True");
  EXPECT_EQ(render("{% set ns = namespace() %}{% for i in l %}{% set ns.loop = loop %}{% endfor %}"
                   "{{ ns.loop.last }}"),
            "True");
  EXPECT_EQ(render("{% set ns = namespace() %}{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}"
                   "{% set ns.m = m %}{% endfor %}{{ ns.m() }}"),
            "2");
}

TEST(JinjaClock, UsesTheGivenTime) {
  EXPECT_EQ(render("{{ strftime_now('%d %B %Y') }}", {.now_unix_s = 1752148800}), "10 July 2025");
}

}  // namespace
}  // namespace outrider
