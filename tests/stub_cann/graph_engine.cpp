// The graph engine as far as torchair gets on a stand-in: it starts with its options, which a test
// can ask for, and takes no graph.
#define _GLIBCXX_USE_CXX11_ABI 0  // as torchair is built: it is given strings of the old kind
#include <cstring>
#include <map>
#include <string>

#include "ge/ge_api.h"
#include "graph/ascend_string.h"
#include "graph/operator_factory.h"
#include "stub.h"

namespace {

std::string options;  // one "name=value" a line, as of the last start

}  // namespace

// For the tests: the options with which the graph engine was started in this process.
STUB_API const char* stub_graph_options() { return options.c_str(); }

namespace ge {

AscendString::AscendString(const char_t* name) : name_(std::make_shared<std::string>(name ? name : "")) {}
const char_t* AscendString::GetString() const { return name_ ? name_->c_str() : ""; }
bool AscendString::operator<(const AscendString& other) const { return std::strcmp(GetString(), other.GetString()) < 0; }
bool AscendString::operator==(const AscendString& other) const { return std::strcmp(GetString(), other.GetString()) == 0; }

bool OperatorFactory::IsExistOp(const char_t*) { return false; }

Status GEInitialize(const std::map<AscendString, AscendString>& given) {
    options.clear();
    for (const auto& [name, value] : given)
        options += std::string(name.GetString()) + "=" + value.GetString() + "\n";
    return FAILED;
}
std::string GEGetErrorMsg() { return "stub CANN: there is no graph engine here"; }

}  // namespace ge
